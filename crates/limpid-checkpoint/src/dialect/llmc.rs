//! llm.c's models are GPT-2s with F = 4 C, the tanh GELU, a tied head and 1e-5 in the norms; the header has sizes only.

use super::Link;
use super::huggingface::{self, Held, Row, nearest};
use crate::CheckpointError;
use crate::llmc::Header;
use crate::store::Dtype;
use limpid_core::config::{Activation, Config, ConfigError, RotaryPairs};
use limpid_core::model::Model;

/// Rows of the token table are rounded up to this.
const VOCAB_ALIGN: usize = 128;

/// The configuration of a header.
pub(crate) fn read(h: &Header) -> Result<Config, ConfigError> {
    let config = Config {
        vocab_size: h.vocab_size,
        context_length: h.context_length,
        d_model: h.d_model,
        n_head: h.n_head,
        n_layer: h.n_layer,
        d_ff: 4 * h.d_model,
        ..Config::default()
    };
    config.check().map(|()| config)
}

/// The header of a model, and the configuration with all that llm.c always has.
pub(crate) fn express(c: &Config, dtype: Dtype) -> Result<(Header, Config), CheckpointError> {
    let (_, config, mut not) = nearest(c, &huggingface::ALL[..1]); // GPT-2
    let activation = format!("activation {}", c.activation);
    not.unless(c.activation == Activation::GeluTanh, activation, "activation gelu-tanh");
    not.unless(c.d_ff == 4 * c.d_model, "d_ff other than 4 d_model", format_args!("d_ff {}", 4 * c.d_model));
    not.unless(c.tied_head, "tied_head false", "tied_head true");
    not.unless(c.norm_eps == 1e-5, format!("norm_eps {}", c.norm_eps), "norm_eps 1e-5");
    not.attention_scale(c);
    not.check("llm.c's GPT-2")?;
    let header = Header {
        context_length: c.context_length,
        vocab_size: c.vocab_size,
        padded_vocab_size: c.vocab_size.next_multiple_of(VOCAB_ALIGN),
        n_layer: c.n_layer,
        n_head: c.n_head,
        d_model: c.d_model,
        dtype,
    };
    Ok((header, config))
}

const TENSORS: &[Row] = &[
    Row("wte", "embed.weight", Held::Same),
    Row("wpe", "pos_embed.weight", Held::Same),
    Row("ln1w.{}", "ln1.weight", Held::Same),
    Row("ln1b.{}", "ln1.bias", Held::Same),
    Row("qkvw.{}", "attn.qkv.weight", Held::Same),
    Row("qkvb.{}", "attn.qkv.bias", Held::Same),
    Row("attprojw.{}", "attn.out.weight", Held::Same),
    Row("attprojb.{}", "attn.out.bias", Held::Same),
    Row("ln2w.{}", "ln2.weight", Held::Same),
    Row("ln2b.{}", "ln2.bias", Held::Same),
    Row("fcw.{}", "mlp.in.weight", Held::Same),
    Row("fcb.{}", "mlp.in.bias", Held::Same),
    Row("fcprojw.{}", "mlp.out.weight", Held::Same),
    Row("fcprojb.{}", "mlp.out.bias", Held::Same),
    Row("lnfw", "ln_final.weight", Held::Same),
    Row("lnfb", "ln_final.bias", Held::Same),
];

/// Which of its tensors is which of ours.
pub(crate) fn links(model: &Model) -> Vec<Link> {
    huggingface::links(TENSORS.iter(), RotaryPairs::Halves, model)
}
