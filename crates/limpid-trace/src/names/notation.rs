//! Notations: what the documents of docs/contract.md, llm.c and TransformerLens call tensors and axes.
//!
//! [`DOCUMENTS`] has the words of S1, S2 and S3, beside those of [`TABLE`]; [`LETTERS`] has the axes. A model may
//! normalise elsewhere than a document does: a word then goes with what was computed, a sum or a norm, and not with its
//! place.

use super::{SUB, TABLE, digits, lookup, symbol_within};
use limpid_core::config::{Activation, Axis, Config, Mask, NormPlace, Positions, QkNorm, axis};
use limpid_core::model::{Module, in_block};

axis! {
    /// What tensors and axes are called by.
    Notation, "notation" {
        /// The symbols of "Notations" and limpid's letters (those of `ops`).
        Limpid = "limpid",
        /// The article "Notations".
        S0 = "s0",
        /// The article "Zero-to-Hero".
        S1 = "s1",
        /// The article "The Formulated GPT-2".
        S2 = "s2",
        /// The page "Decoder-Only Transformer Architecture".
        S3 = "s3",
        /// llm.c.
        Llmc = "llmc",
        /// TransformerLens.
        TransformerLens = "transformerlens",
    }
}

/// Words of S1, S2 and S3 for limpid's names; empty where a document has none. `{}` is the block's number, from 1,
/// which goes where the block is known; `{l}` and `{l-1}` stay.
#[rustfmt::skip]
pub const DOCUMENTS: &[[&str; 4]] = &[
    // name                                     S1                                       S2
    // S3
    ["input",                                  "input sequence batch",                  "x",                          "input"],
    ["hook_embed",                             "Input Embedding",                       "OneHot(x) W_e",              "tok_emb"],
    ["hook_pos_embed",                         "Position Embedding",                    "W_p",                        "pos_emb"],
    ["hook_embed_sum",                         "X",                                     "X₀",                         "x"],
    ["blocks.{i}.hook_resid_pre",              "X",                                     "X{l-1}",                     "x"],
    ["blocks.{i}.ln1.hook_mean",               "μ",                                     "μ",                          "E[x]"],
    ["blocks.{i}.ln1.hook_scale",              "√(variance + ε)",                       "√(σ² + ε)",                  "√(Var[x] + ε)"],
    ["blocks.{i}.ln1.hook_out",                "LayerNorm",                             "LayerNorm(X{l-1})",          "Norm(x)"],
    ["blocks.{i}.attn.hook_q",                 "Q",                                     "X W^Q",                      "Q"],
    ["blocks.{i}.attn.hook_k",                 "K",                                     "X W^K",                      "K"],
    ["blocks.{i}.attn.hook_v",                 "V",                                     "X W^V",                      "V"],
    ["blocks.{i}.attn.hook_unscaled_scores",   "Q*K^T",                                 "Q Kᵀ",                       "wei"],
    ["blocks.{i}.attn.hook_raw_scores",        "Q*K^T/√16",                             "Q Kᵀ / √D",                  "scaled wei"],
    ["blocks.{i}.attn.hook_attn_scores",       "masked scores",                         "Q Kᵀ / √D + Mask",           "masked wei"],
    ["blocks.{i}.attn.hook_pattern",           "softmax_output",                        "Softmax(·)",                 "softmax(wei)"],
    ["blocks.{i}.attn.hook_z",                 "A",                                     "Concat(head₁, …, head_A)",   "concatenated heads"],
    ["blocks.{i}.hook_attn_out",               "Output",                                "MultiHeadSA(·)",             "MHA output"],
    ["blocks.{i}.hook_attn_sum",               "residual connection",                   "MultiHeadSA(·) + X{l-1}",    ""],
    ["blocks.{i}.hook_resid_mid",              "X after Add & Norm",                    "X′{l}",                      "x + MHA"],
    ["blocks.{i}.ln2.hook_mean",               "μ",                                     "μ",                          "E[x]"],
    ["blocks.{i}.ln2.hook_scale",              "√(variance + ε)",                       "√(σ² + ε)",                  "√(Var[x] + ε)"],
    ["blocks.{i}.ln2.hook_out",                "LayerNorm",                             "LayerNorm(X′{l})",           "Norm(x)"],
    ["blocks.{i}.mlp.hook_pre",                "nn.Linear(d_model, d_model * 4)",       "X W₁ + b₁",                  "Output_1"],
    ["blocks.{i}.mlp.hook_post",               "nn.ReLU()",                             "GELU(X W₁ + b₁)",            "Activated Output"],
    ["blocks.{i}.hook_mlp_out",                "nn.Linear(d_model * 4, d_model)",       "FFN(·)",                     "Output_2"],
    ["blocks.{i}.hook_mlp_sum",                "residual connection",                   "FFN(·) + X′{l}",             ""],
    ["blocks.{i}.hook_resid_post",             "output",                                "X{l}",                       "Output_final"],
    ["ln_final.hook_out",                      "",                                      "LayerNorm(X_L)",             ""],
    ["logits",                                 "logits",                                "X_L W_eᵀ",                   "logits"],
    ["probs",                                  "torch.softmax(logits)",                 "Y",                          "P"],
    ["losses",                                 "nn.CrossEntropyLoss",                   "−log Y",                     "−log P_target"],
    ["embed.weight",                           "Token Embedding Look-Up Table",         "W_e",                        "Token Embedding Table"],
    ["pos_embed.weight",                       "",                                      "W_p",                        "Positional Embedding Table"],
    ["segment_embed.weight",                   "",                                      "w_B, w_A",                   ""],
    ["blocks.{i}.ln1.weight",                  "nn.LayerNorm weight",                   "γ{}",                        "γ"],
    ["blocks.{i}.ln1.bias",                    "nn.LayerNorm bias",                     "β{}",                        "β"],
    ["blocks.{i}.attn.W_Q",                    "Wq",                                    "W_i^Q",                      "W_Q"],
    ["blocks.{i}.attn.W_K",                    "Wk",                                    "W_i^K",                      "W_K"],
    ["blocks.{i}.attn.W_V",                    "Wv",                                    "W_i^V",                      "W_V"],
    ["blocks.{i}.attn.out.weight",             "Wo",                                    "W^O",                        "final projection matrix"],
    ["blocks.{i}.ln2.weight",                  "nn.LayerNorm weight",                   "γ′{}",                       "γ"],
    ["blocks.{i}.ln2.bias",                    "nn.LayerNorm bias",                     "β′{}",                       "β"],
    ["blocks.{i}.mlp.in.weight",               "A₁",                                    "W₁",                         "W_1"],
    ["blocks.{i}.mlp.in.bias",                 "b₁",                                    "b₁",                         "b_1"],
    ["blocks.{i}.mlp.out.weight",              "A₂",                                    "W₂",                         "W_2"],
    ["blocks.{i}.mlp.out.bias",                "b₂",                                    "b₂",                         "b_2"],
    ["ln_final.weight",                        "",                                      "γ",                          ""],
    ["ln_final.bias",                          "",                                      "β",                          ""],
    ["unembed.weight",                         "nn.Linear(d_model, vocab_size) weight", "",                           "linear layer weight"],
    ["unembed.bias",                           "nn.Linear(d_model, vocab_size) bias",   "",                           "linear layer bias"],
];

/// Axes: limpid's name, which is TransformerLens's, and the letters of limpid, S0, S1, S2, S3 and llm.c; empty where
/// one has none. [`Notation::letters`] has those of a model: `kv_head` and `d_v` where they differ from `head` and
/// `d_head`.
#[rustfmt::skip]
pub const LETTERS: &[[&str; 7]] = &[
    // axis        limpid  S0      S1                S2    S3            llm.c
    ["batch",      "B",    "B",    "batch_size",     "",   "B",          "B"],
    ["pos",        "T",    "T",    "context_length", "n",  "T",          "T"],
    ["n_ctx",      "T_max", "",    "",               "n_ctx", "block_size", "maxT"],
    ["query_pos",  "T",    "T",    "context_length", "n",  "T",          "T"],
    ["key_pos",    "T",    "T",    "context_length", "n",  "T",          "T"],
    ["d_model",    "C",    "D",    "d_model",        "H",  "C",          "C"],
    ["d_embed",    "E",    "",     "",               "",   "",           ""],
    ["head",       "H",    "H",    "num_heads",      "A",  "heads",      "NH"],
    ["kv_head",    "K",    "",     "",               "",   "",           ""],
    ["d_head",     "D",    "d_k",  "head_size",      "D",  "h_s",        "hs"],
    ["d_v",        "D_v",  "d_v",  "",               "",   "",           ""],
    ["d_ff",       "F",    "d_ff", "d_model*4",      "F",  "D",          "4C"],
    ["d_vocab",    "V",    "V",    "vocab_size",     "V",  "vocab_size", "V"],
    ["n_layer",    "L",    "L",    "blocks",         "L",  "blocks",     "L"],
    ["features",   "3C",   "3D",   "d_model*3",      "3H", "3C",         "3C"],
    ["segment",    "S",    "",     "",               "",   "",           ""],
    ["outputs",    "N",    "",     "",               "",   "",           ""],
    ["1",          "1",    "",     "",               "",   "",           ""],
];

impl Notation {
    /// Whose it is: llm.c, "Zero-to-Hero".
    pub fn whose(self) -> &'static str {
        match self {
            Notation::Limpid => "limpid",
            Notation::S0 => "\"Notations\"",
            Notation::S1 => "\"Zero-to-Hero\"",
            Notation::S2 => "\"The Formulated GPT-2\"",
            Notation::S3 => "\"Decoder-Only Transformer Architecture\"",
            Notation::Llmc => "llm.c",
            Notation::TransformerLens => "TransformerLens",
        }
    }

    /// What an axis is called; limpid's letter where the notation has none.
    pub fn letter(self, axis: &str) -> &'static str {
        let Some(row) = LETTERS.iter().find(|row| row[0] == axis) else { return "·" };
        // the columns of the others stand in their order
        let own = if self == Notation::TransformerLens { row[0] } else { row[1 + self as usize] };
        if own.is_empty() { row[1] } else { own }
    }

    /// The axes of a tensor or a parameter in letters, each of which is one size of the model: `B T C`. Columns that
    /// the field has no name for are products and sums of such: `H·D` of the heads side by side, where that is not C.
    pub fn letters(self, name: &str, axes: &[&str], config: &Config) -> String {
        let name = name.strip_suffix(".grad").unwrap_or(name);
        let fewer = config.heads().n_kv_head != config.n_head && is_of_keys_or_values(name);
        let letter = |axis: &&str| match *axis {
            "head" if fewer => self.letter("kv_head").into(),
            // a row for every place that may come
            "pos" if name == "pos_embed.weight" => self.letter("n_ctx").into(),
            "features" => self.features(name, config),
            axis => self.letter_in(axis, config).to_string(),
        };
        axes.iter().map(letter).collect::<Vec<_>>().join(" ")
    }

    /// What an axis is called in a model, whatever tensor it is of.
    pub fn letter_in(self, axis: &str, config: &Config) -> &'static str {
        match self.letter(axis) {
            "4C" | "d_model*4" if config.d_ff != 4 * config.d_model => Notation::Limpid.letter(axis),
            own => own,
        }
    }

    /// Heads side by side, `heads` of them and `size` columns each: `C` where they are as wide as the stream, `H·D`
    /// where not.
    pub fn joined(self, (heads, size): (&str, &str), columns: usize, config: &Config) -> String {
        if columns == config.d_model {
            return self.letter("d_model").into();
        }
        format!("{}·{}", self.letter(heads), self.letter(size))
    }

    /// Columns that the field has no name for.
    fn features(self, name: &str, config: &Config) -> String {
        let heads = config.heads();
        let kv = if heads.n_kv_head == heads.n_head { "head" } else { "kv_head" };
        let value = value_axis(config);
        let parts = [("head", "d_head"), (kv, "d_head"), (kv, value)];
        let together = config.qk_norm == QkNorm::Width;
        match name.rsplit_once(".attn.").map_or("", |(_, own)| own) {
            "out.weight" | "hook_z" => self.joined(("head", value), heads.output_cols(), config),
            "q_norm.weight" if together => self.joined(parts[0], heads.query_cols(), config),
            "k_norm.weight" if together => self.joined(parts[1], heads.key_cols(), config),
            "q_norm.weight" | "k_norm.weight" => self.letter("d_head").into(),
            _ if heads.parts().iter().all(|part| part.len() == config.d_model) => self.letter("features").into(),
            _ => {
                let product = |(heads, size)| format!("{}·{}", self.letter(heads), self.letter(size));
                let [q, k, v] = parts.map(product);
                if q == k && k == v { format!("3·{q}") } else { format!("{q}+{k}+{v}") }
            }
        }
    }

    /// Which of a tensor's axes comes first, second, ...: the documents write queries, keys and values head by head
    /// (B H T d), which are stored position by position (B T H d); and S1 the context `A`, where the others mean the
    /// concatenated heads.
    pub fn order(self, name: &str, axes: &[&str]) -> Vec<usize> {
        let document = matches!(self, Notation::S0 | Notation::S1 | Notation::S2 | Notation::S3);
        let context = name.strip_suffix(".grad").unwrap_or(name).ends_with(".hook_z");
        match axes {
            ["batch", "pos", "head", "d_head" | "d_v"] if document && (self == Notation::S1 || !context) => {
                vec![0, 2, 1, 3]
            }
            _ => (0..axes.len()).collect(),
        }
    }

    /// Its word for a row of the tables.
    fn word(self, row: &str) -> Option<&'static str> {
        let document = |n: usize| DOCUMENTS.iter().find(|words| words[0] == row).map(|words| words[n]);
        let entry = TABLE.iter().find(|entry| entry.name == row);
        let word = match self {
            Notation::Limpid | Notation::S0 => entry.map(|entry| entry.symbol),
            Notation::S1 => document(1),
            Notation::S2 => document(2),
            Notation::S3 => document(3),
            Notation::Llmc => entry.map(|entry| entry.llmc),
            // what is said of it is no name
            Notation::TransformerLens => {
                entry.map(|entry| entry.lens).filter(|lens| lens.starts_with("blocks") || !lens.contains(' '))
            }
        };
        word.filter(|word| !word.is_empty())
    }
}

/// What a notation calls a tensor or a parameter by limpid's name: `wei` for `blocks.0.attn.hook_unscaled_scores` in
/// S3. None where it has no word for it, or there is no such name.
///
/// ```
/// use limpid_core::config::Config;
/// use limpid_trace::names::{Notation, called};
/// let gpt2 = Config::preset("gpt2").unwrap();
/// assert_eq!(called("blocks.1.hook_resid_post", &gpt2, Notation::S2).unwrap(), "X₂");
/// assert_eq!(called("blocks.1.attn.hook_pattern", &gpt2, Notation::Llmc).unwrap(), "att[1]");
/// ```
pub fn called(name: &str, config: &Config, notation: Notation) -> Option<String> {
    called_within(name, config, notation, None)
}

/// The same, without the block's number where it is `home`.
pub fn called_within(name: &str, config: &Config, notation: Notation, home: Option<usize>) -> Option<String> {
    if matches!(notation, Notation::Limpid | Notation::S0) {
        return symbol_within(name, config, home);
    }
    if let Some(tensor) = name.strip_suffix(".grad") {
        let own = called_within(tensor, config, notation, home)?;
        let param = lookup(tensor)?.0.is_param();
        return Some(match notation {
            // it keeps means, reciprocals of deviations and probabilities, and no gradients of these
            Notation::Llmc if tensor.ends_with("hook_mean") || own.starts_with("1/") || own == "probs" => return None,
            Notation::Llmc if param => format!("grads.{own}"),
            Notation::Llmc => format!("grads_acts.{own}"),
            Notation::TransformerLens if param => format!("{own}.grad"),
            Notation::TransformerLens => format!("{own}_grad"), // as its cache has it
            Notation::S3 => format!("∂Loss/∂{}", factor(&own)),
            _ => format!("∂𝓛/∂{}", factor(&own)),
        });
    }
    let (entry, block) = lookup(name)?;
    let (i, four) = (block.unwrap_or(0), config.d_ff == 4 * config.d_model);
    let word = match (notation, entry.name) {
        (Notation::Llmc, "blocks.{i}.hook_resid_pre") if i > 0 => {
            return called_within(&Module::block(i - 1).named("hook_resid_post"), config, notation, home);
        }
        (Notation::Llmc, "blocks.{i}.hook_resid_pre") => return Some("encoded".into()),
        (Notation::TransformerLens, "blocks.{i}.hook_resid_post" | "blocks.{i}.ln2.hook_out")
            if config.norm_place == NormPlace::Post =>
        {
            "blocks.{i}.hook_normalized_resid_post" // HookedEncoder's
        }
        // words that say a size or a choice are of models that have it
        (Notation::S1, "blocks.{i}.attn.hook_raw_scores") => {
            return scaled(config).map(|by| format!("Q*K^T{by}"));
        }
        (Notation::S2, "blocks.{i}.attn.hook_raw_scores") if scaled(config)?.is_empty() => "Q Kᵀ",
        (Notation::S2, "blocks.{i}.attn.hook_attn_scores") if config.mask == Mask::None => return None,
        (Notation::S2, "blocks.{i}.attn.hook_attn_scores") if scaled(config)?.is_empty() => "Q Kᵀ + Mask",
        (Notation::S1, "blocks.{i}.mlp.hook_pre") if !four => "nn.Linear(d_model, d_ff)",
        (Notation::S1, "blocks.{i}.hook_mlp_out") if !four => "nn.Linear(d_ff, d_model)",
        (Notation::S1, "blocks.{i}.mlp.hook_post") if config.activation != Activation::Relu || config.ffn_gated => {
            return None;
        }
        // "The Formulated GPT-2" has two boxes, one with a norm before the head, and two activations
        (Notation::S2, "logits") if config.final_norm => "LayerNorm(X_L) W_eᵀ",
        (Notation::S2, "blocks.{i}.mlp.hook_post") => match config.activation {
            _ if config.ffn_gated => return None,
            Activation::Relu => "max(0, X W₁ + b₁)",
            gelu if gelu.name().starts_with("gelu") => "GELU(X W₁ + b₁)",
            _ => return None,
        },
        (_, row) => notation.word(computed_there(row, config.norm_place, notation))?,
    };
    let (number, before, at_home) = (digits(i + 1, SUB), digits(i, SUB), block == home);
    let word = word.replace("{}", if at_home { "" } else { &number });
    let word = word.replace("{l}", &number).replace("{l-1}", &before).replace("{i}", &i.to_string());
    Some(match notation {
        Notation::Llmc if block.is_some() && !at_home => format!("{word}[{i}]"),
        Notation::TransformerLens if at_home => within(&word, home).into(),
        _ => word,
    })
}

/// What scores are divided by, as "Zero-to-Hero" writes it: `/√16`; nothing where they are not. None where something
/// else is done to them.
fn scaled(config: &Config) -> Option<String> {
    let plain =
        config.attention_factor.is_none() && !config.attention_scale_by_layer && config.attention_softcap == 0.0;
    let by = || if config.attention_scale { format!("/√{}", config.d_head()) } else { String::new() };
    plain.then(by)
}

/// The axes of a model's own, what they are, and how large.
pub fn sizes(c: &Config) -> impl Iterator<Item = (&'static str, &'static str, usize)> {
    let kv = c.heads().n_kv_head;
    let all = [
        (c.positions == Positions::Learned).then_some(("n_ctx", "context", c.context_length)),
        Some(("d_model", "d_model", c.d_model)),
        c.d_embed.map(|wide| ("d_embed", "d_embed", wide)),
        Some(("head", "heads", c.n_head)),
        (kv != c.n_head).then_some(("kv_head", "heads of keys and values", kv)),
        Some(("d_head", "d_head", c.d_head())),
        (c.d_value() != c.d_head()).then_some(("d_v", "features of a value", c.d_value())),
        Some(("d_ff", "d_ff", c.d_ff)),
        Some(("d_vocab", "vocabulary", c.vocab_size)),
        Some(("n_layer", "blocks", c.n_layer)),
    ];
    all.into_iter().flatten()
}

/// The axis of a value's features: of its own where it has another number of them than queries and keys.
pub fn value_axis(config: &Config) -> &'static str {
    if config.d_value() == config.d_head() { "d_head" } else { "d_v" }
}

/// Whether the heads of a tensor or a parameter are those of keys and values.
fn is_of_keys_or_values(name: &str) -> bool {
    const OWN: [&str; 8] = ["hook_k", "hook_v", "hook_norm_k", "hook_rot_k", "W_K", "W_V", "b_K", "b_V"];
    name.rsplit_once(".attn.").is_some_and(|(_, own)| OWN.contains(&own))
}

/// As [`called_within`], where the tensor is shown head by head: the context has other words then, `C` in "Notations"
/// for a part of `C_concat`.
pub fn called_by_head(name: &str, config: &Config, notation: Notation, home: Option<usize>) -> Option<String> {
    let whole = called_within(name, config, notation, home)?;
    Some(match notation {
        _ if !name.ends_with(".hook_z") => whole,
        Notation::Limpid | Notation::S0 => whole.replace("C_concat", "C"),
        Notation::S2 => "head_i".into(),
        Notation::S3 => "output of a head".into(),
        _ => whole,
    })
}

/// Whether the word for a weight matrix means it as limpid stores it, (out, in), so that a product is with its
/// transpose: llm.c's words do, S1's of `nn.Linear` (`x A₁ᵀ + b₁`), and limpid's own names, which stand where there is
/// no word. Other words mean (in, out).
pub fn is_stored(name: &str, config: &Config, notation: Notation) -> bool {
    match notation {
        _ if called(name, config, notation).is_none() => true,
        Notation::Llmc => true,
        Notation::S1 => name.contains(".mlp.") || name == "unembed.weight",
        _ => false,
    }
}

/// The row of what a document computes where this model has `row`: S1 normalises after the sum, S3, llm.c and
/// TransformerLens before the sub-layer, S2 has models of both kinds.
fn computed_there(row: &'static str, place: NormPlace, notation: Notation) -> &'static str {
    let (mid, post) = ("blocks.{i}.hook_resid_mid", "blocks.{i}.hook_resid_post");
    let (first, second) = ("blocks.{i}.ln1.hook_out", "blocks.{i}.ln2.hook_out");
    let (attn_sum, mlp_sum) = ("blocks.{i}.hook_attn_sum", "blocks.{i}.hook_mlp_sum");
    let writes_pre = matches!(notation, Notation::S3 | Notation::Llmc | Notation::TransformerLens);
    // without a norm behind the feed-forward network there is none of it to call by another name
    let both = place == NormPlace::Post;
    match place {
        NormPlace::Pre if notation == Notation::S1 && row == mid => attn_sum,
        NormPlace::Pre if notation == Notation::S1 && row == post => mlp_sum,
        _ if !place.is_post() => row,
        _ if writes_pre && row == attn_sum => mid,
        _ if writes_pre && row == mlp_sum => post,
        _ if writes_pre && row == mid => first,
        _ if writes_pre && both && row == post => second,
        _ if !writes_pre && row == first => mid,
        _ if !writes_pre && row == second => post,
        _ => row,
    }
}

/// A name as it is said inside a block.
pub fn within(name: &str, home: Option<usize>) -> &str {
    in_block(name).filter(|(block, _)| Some(*block) == home).map_or(name, |(_, own)| own)
}

/// A word as a factor of a product: in brackets where it is a sum, a quotient or several words.
pub fn factor(word: &str) -> String {
    let mut depth = 0;
    let loose = word.chars().any(|c| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        depth == 0 && matches!(c, ' ' | '/')
    });
    if loose { format!("({word})") } else { word.to_string() }
}
