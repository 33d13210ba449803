//! The table of HuggingFace's families, each read off its `configuration_` and `modeling_` files in transformers 5.23.
//! What several share comes first: keys of sizes, tensors of Llama's kind and of BERT's. A family is then what differs.
//!
//! To add one: an entry of [`ALL`] with what all its models have (`always`, where that is not GPT-2's), its keys and
//! their values where a file has none (`usual`, where those are not the shared lists'), its tensors; two models in
//! `reference/families.py`.

use super::family::Family;
use super::keys::Key::{Act, All, By, Cap, Choice, Follows, Idle, Is, Only, Rope, Window};
use super::keys::{
    Entries, Key, Keys, ROPE, WindowBlocks, blocks, gemma_spellings, gpt_spellings, layer_types, pattern, read_rope,
    refuse, spellings,
};
use limpid_core::config::{Parallel, Positions, RotaryKind, RotaryPairs, RotaryScaling};
use serde_json::{Value, json};
use std::collections::HashMap;

// ---- keys that families share

const SIZES: Key = Is("vocab_size=vocab_size d_model=hidden_size n_head=num_attention_heads \
                       n_layer=num_hidden_layers d_ff=intermediate_size");
const GPT_SIZES: Key = Is("vocab_size=vocab_size context_length=n_positions|max_position_embeddings|n_ctx \
                           d_model=n_embd|hidden_size n_head=n_head|num_attention_heads \
                           n_layer=n_layer|num_hidden_layers norm_eps=layer_norm_epsilon?1e-5");
const GPT_DROPOUT: Key = Is("dropout_embedding=embd_pdrop?0.1 dropout_attention=attn_pdrop?0.1 \
        dropout_projection,dropout_ffn=resid_pdrop?0.1");
const N_INNER: Key = Is("d_ff=n_inner?4*d_model");
/// d_ff is 4 d_model always.
const FOURFOLD: Key = Follows(|c| c.d_ff = c.d_model.saturating_mul(4));

const CONTEXT: Key = Is("context_length=max_position_embeddings?2048");
const GIVEN_CONTEXT: Key = Is("context_length=max_position_embeddings");
const KV_HEADS: Key = Is("n_kv_head=num_key_value_heads?-");
/// What Llama and its like have beside [`SIZES`], with Llama's values of missing keys.
const GROUPED: Key = All(&[CONTEXT, KV_HEADS, Is("d_head=head_dim?-")]);
const LAYER_EPS: Key = Is("norm_eps=layer_norm_eps?1e-5");
const RMS_EPS: Key = Is("norm_eps=rms_norm_eps?1e-6");
/// The angles of heads that are turned as a whole.
const ANGLES: Key = Rope(None, ROPE);
/// Sizes and angles of Llama and its like.
const LLAMA_KEYS: Key = All(&[SIZES, GROUPED, RMS_EPS, ANGLES]);
const SILU: Key = Act(&["hidden_act"], "silu", spellings);
const UNTIED: Key = Is("tied_head=tie_word_embeddings?false");
const TIED: Key = Is("tied_head=tie_word_embeddings?true");
const ATTENTION_DROPOUT: Key = Is("dropout_attention=attention_dropout?0");
const ATTENTION_BIAS: Key = Is("attention_bias=attention_bias?false");
const FFN_BIAS: Key = Is("ffn_bias=mlp_bias?false");
const USE_BIAS: Key = Is("attention_bias,ffn_bias=use_bias?true");
/// Phi's.
const PHI_DROPOUT: Key = Is("dropout_embedding=embd_pdrop?0 dropout_attention=attention_dropout?0 \
        dropout_projection,dropout_ffn=resid_pdrop?0");

/// What most of Llama's kind have: rotary positions, norms by RMS, a gated network without biases.
pub(crate) const GATED_RMS: &str = "positions=rotary norm=rms norm_offset=false ffn_bias=false ffn_gated=true";
/// What Llama and its like have.
const LLAMAS: &[&str] = &[GATED_RMS, "attention_bias=false"];

/// What BERT and ALBERT say alike.
const ENCODER_KEYS: Key = All(&[
    By(
        |k, c| {
            c.n_segment = k.maybe_size(&["type_vocab_size"])?.unwrap_or(2);
            Ok(())
        },
        |c| vec![("type_vocab_size", json!(if c.n_segment == 0 { 2 } else { c.n_segment }))],
    ),
    Is("norm_eps=layer_norm_eps?1e-12"),
    TIED,
    Only("position_embedding_type", "\"absolute\"", "a trained table"),
    Only("is_decoder", "false", "BERT sees both ways"),
]);
const BERT_KEYS: Key = All(&[
    Act(&["hidden_act"], "gelu", spellings),
    Is("dropout_embedding,dropout_projection,dropout_ffn=hidden_dropout_prob?0.1 \
        dropout_attention=attention_probs_dropout_prob?0.1"),
]);
pub(crate) const BERTS: &str =
    "norm_place=post final_norm=false embedding_norm=true mask=bidirectional head_bias=true head_transform=true";
/// Positions are counted from 2, after `pad_token_id`.
const FROM_2: Key = All(&[
    By(
        |k, c| match k.maybe_size(&["max_position_embeddings"])? {
            Some(rows @ 3..) => {
                c.context_length = rows - 2;
                Ok(())
            }
            _ => refuse("`max_position_embeddings` must be at least 3: positions are counted from 2"),
        },
        |c| vec![("max_position_embeddings", json!(c.context_length + 2)), ("pad_token_id", json!(1))],
    ),
    Only("pad_token_id", "1", "positions are counted from the one after it"),
]);

// ---- tensors that families share

const LM_HEAD: &str = "unembed.weight=lm_head.weight";
const EMBED_TOKENS: &str = "embed.weight=embed_tokens.weight";
const TIED_COPY: &[(&str, &str)] = &[("lm_head.weight", "embed_tokens.weight")];
const WTE_COPY: &[(&str, &str)] = &[("lm_head.weight", "wte.weight")];
/// Attention with matrices of their own.
const QKV: &str = "attn.qkv=layers.{}.self_attn.(q|k|v)_proj attn.out=layers.{}.self_attn.o_proj \
                   attn.q_norm=layers.{}.self_attn.q_norm:turned attn.k_norm=layers.{}.self_attn.k_norm:turned";
const GATED: &str = "mlp.gate=layers.{}.mlp.gate_proj mlp.in=layers.{}.mlp.up_proj mlp.out=layers.{}.mlp.down_proj";
const GATED_TOGETHER: &str = "mlp.gate=layers.{}.mlp.gate_up_proj:first-half \
                              mlp.in=layers.{}.mlp.gate_up_proj:second-half mlp.out=layers.{}.mlp.down_proj";
const NORMS: &str = "ln1=layers.{}.input_layernorm ln2=layers.{}.post_attention_layernorm ln_final=norm";
/// Gemma 2's four norms of a block.
const FOUR_NORMS: &str = "ln1=layers.{}.input_layernorm ln1_post=layers.{}.post_attention_layernorm \
                          ln2=layers.{}.pre_feedforward_layernorm ln2_post=layers.{}.post_feedforward_layernorm \
                          ln_final=norm";
const LLAMA_TENSORS: &[&str] = &[EMBED_TOKENS, QKV, GATED, NORMS];

const BERT_EMBEDDINGS: &str = "embed.weight=embeddings.word_embeddings.weight \
                               segment_embed.weight=embeddings.token_type_embeddings.weight \
                               embed_norm=embeddings.LayerNorm";
const BERT_BLOCKS: &str = "attn.qkv=encoder.layer.{}.attention.self.(query|key|value) \
                           attn.out=encoder.layer.{}.attention.output.dense \
                           ln1=encoder.layer.{}.attention.output.LayerNorm mlp.in=encoder.layer.{}.intermediate.dense \
                           mlp.out=encoder.layer.{}.output.dense ln2=encoder.layer.{}.output.LayerNorm";
const POSITIONS: &str = "pos_embed.weight=embeddings.position_embeddings.weight";
const POSITIONS_FROM_2: &str = "pos_embed.weight=embeddings.position_embeddings.weight:from-2";
/// Poolers, index tables, and heads that are not over the vocabulary.
const BERT_IDLE: &[&str] =
    &["embeddings.position_ids", "embeddings.token_type_ids", "pooler.*", "cls.seq_relationship.*"];

// ---- families

/// What most families have that is not said of them.
const FAMILY: Family = Family {
    names: ["", "", ""],
    headless: "",
    prefix: "model.",
    always: &[],
    keys: &[],
    usual: "",
    tensors: LLAMA_TENSORS,
    head: LM_HEAD,
    copies: TIED_COPY,
    idle: &[],
    pairs: RotaryPairs::Halves,
    head_gelu: false,
};

const GPT_BLOCKS: &str = "ln1=h.{}.ln_1 attn.qkv=h.{}.attn.c_attn:transposed attn.out=h.{}.attn.c_proj:transposed \
                          ln2=h.{}.ln_2 mlp.in=h.{}.mlp.c_fc:transposed mlp.out=h.{}.mlp.c_proj:transposed";
const GPT_MASKS: &[&str] = &["*.attn.bias", "*.attn.masked_bias"];

const ROBERTAS: Family = Family {
    prefix: "roberta.",
    always: &[BERTS],
    keys: &[SIZES, ENCODER_KEYS, BERT_KEYS, FROM_2],
    tensors: &[BERT_EMBEDDINGS, POSITIONS_FROM_2, BERT_BLOCKS],
    head: "head.dense=lm_head.dense head.ln=lm_head.layer_norm unembed.weight=lm_head.decoder.weight \
           unembed.bias=lm_head.bias",
    copies: &[
        ("lm_head.decoder.weight", "embeddings.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ],
    idle: BERT_IDLE,
    head_gelu: true,
    ..FAMILY
};

/// The width of the embedding, which ALBERT says and ELECTRA has the stream's where they are the same.
fn write_embedding_size(c: &C) -> Entries {
    vec![("embedding_size", json!(c.d_embed()))]
}

/// The embedding times the root of its width.
const ROOT_SCALE: Key = Follows(|c| c.embedding_scale = (c.d_model as f64).sqrt());
/// Scores times 1 / sqrt(`query_pre_attn_scalar`).
const QUERY_SCALAR: Key = By(
    |k, c| {
        c.attention_factor = Some(1.0 / k.number(&["query_pre_attn_scalar"], 256.0)?.sqrt());
        Ok(())
    },
    |c| vec![("query_pre_attn_scalar", json!(c.score_scale(0).powi(-2).round() as u64))],
);
const SOFTCAPS: Key = All(&[
    Cap("attention_softcap", "attn_logit_softcapping", "0"),
    Cap("logits_softcap", "final_logit_softcapping", "0"),
]);
const GEMMA_KEYS: Key = All(&[
    GROUPED,
    RMS_EPS,
    TIED,
    ATTENTION_BIAS,
    ATTENTION_DROPOUT,
    ROOT_SCALE,
    Only("use_bidirectional_attention", "false", "a token sees those before it"),
]);

const BIASED_HEAD: &str = "unembed.weight=lm_head.weight unembed.bias=lm_head.bias";

pub(crate) const COHERES: &str = "positions=rotary norm_offset=false parallel=one-norm ffn_bias=false ffn_gated=true";
const COHERE_KEYS: Key = All(&[
    CONTEXT,
    KV_HEADS,
    LAYER_EPS,
    Is("logits_scale=logit_scale?0.0625"),
    SILU,
    TIED,
    ATTENTION_BIAS,
    ATTENTION_DROPOUT,
]);

/// All of them; where several can say a model, the first does.
pub static ALL: &[Family] = &[
    // GPT-2 (Radford et al. 2019): matrices (in, out).
    Family {
        names: ["GPT-2", "gpt2", "GPT2LMHeadModel"],
        prefix: "transformer.",
        keys: &[
            GPT_SIZES,
            GPT_DROPOUT,
            N_INNER,
            TIED,
            Act(&["activation_function"], "gelu_new", spellings),
            Is("attention_scale=scale_attn_weights?true \
                attention_scale_by_layer=scale_attn_by_inverse_layer_idx?false"),
        ],
        tensors: &["embed.weight=wte.weight pos_embed.weight=wpe.weight", GPT_BLOCKS, "ln_final=ln_f"],
        copies: WTE_COPY,
        idle: GPT_MASKS,
        ..FAMILY
    },
    // GPT (Radford et al. 2018): post-norm, no final norm, F = 4 C.
    Family {
        names: ["GPT", "openai-gpt", "OpenAIGPTLMHeadModel"],
        prefix: "transformer.",
        always: &["norm_place=post final_norm=false"],
        keys: &[GPT_SIZES, GPT_DROPOUT, FOURFOLD, TIED, Act(&["afn"], "gelu", gpt_spellings)],
        tensors: &["embed.weight=tokens_embed.weight pos_embed.weight=positions_embed.weight", GPT_BLOCKS],
        copies: &[("lm_head.weight", "tokens_embed.weight")],
        idle: GPT_MASKS,
        ..FAMILY
    },
    // BERT (Devlin et al. 2018), with or without its head.
    Family {
        names: ["BERT", "bert", "BertForMaskedLM"],
        headless: "BertModel",
        prefix: "bert.",
        always: &[BERTS],
        keys: &[SIZES, ENCODER_KEYS, BERT_KEYS, GIVEN_CONTEXT],
        tensors: &[BERT_EMBEDDINGS, POSITIONS, BERT_BLOCKS],
        head: "head.dense=cls.predictions.transform.dense head.ln=cls.predictions.transform.LayerNorm \
               unembed.weight=cls.predictions.decoder.weight unembed.bias=cls.predictions.bias",
        copies: &[
            ("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"),
            ("cls.predictions.decoder.bias", "cls.predictions.bias"),
        ],
        idle: BERT_IDLE,
        ..FAMILY
    },
    // Llama (Touvron et al. 2023): pre-norm by RMS, rotary, gated, shared key heads.
    Family {
        names: ["Llama", "llama", "LlamaForCausalLM"],
        always: LLAMAS,
        keys: &[LLAMA_KEYS, SILU, UNTIED, ATTENTION_BIAS, FFN_BIAS, ATTENTION_DROPOUT],
        ..FAMILY
    },
    // Mistral 7B (Jiang et al. 2023): Llama with a window.
    Family {
        names: ["Mistral", "mistral", "MistralForCausalLM"],
        always: LLAMAS,
        keys: &[LLAMA_KEYS, Window("4096", WindowBlocks::All), SILU, UNTIED, ATTENTION_DROPOUT],
        usual: "context_length=131072 n_kv_head=8",
        ..FAMILY
    },
    // Qwen 2 and 2.5: Llama with biases of queries, keys and values.
    Family {
        names: ["Qwen2", "qwen2", "Qwen2ForCausalLM"],
        always: &[GATED_RMS, "attention_out_bias=false"],
        keys: &[LLAMA_KEYS, Window("4096", WindowBlocks::After), SILU, UNTIED, ATTENTION_DROPOUT],
        usual: "context_length=32768 n_kv_head=32",
        ..FAMILY
    },
    // StarCoder 2 (Lozhkov et al. 2024): layer norms, rotary, not gated.
    Family {
        names: ["StarCoder2", "starcoder2", "Starcoder2ForCausalLM"],
        always: &["positions=rotary"],
        keys: &[
            SIZES,
            GROUPED,
            Is("norm_eps=norm_epsilon?1e-5"),
            ANGLES,
            Window("-", WindowBlocks::All),
            Act(&["hidden_act"], "gelu_pytorch_tanh", spellings),
            TIED,
            USE_BIAS,
            ATTENTION_DROPOUT,
            Is("dropout_projection,dropout_ffn=residual_dropout?0 dropout_embedding=embedding_dropout?0"),
        ],
        usual: "context_length=4096 n_kv_head=2",
        tensors: &[EMBED_TOKENS, QKV, NORMS, "mlp.in=layers.{}.mlp.c_fc mlp.out=layers.{}.mlp.c_proj"],
        ..FAMILY
    },
    // OPT (Zhang et al. 2022): GPT-2 with matrices of their own and positions counted from 2.
    Family {
        names: ["OPT", "opt", "OPTForCausalLM"],
        prefix: "model.decoder.",
        keys: &[
            Is("vocab_size=vocab_size d_model=hidden_size n_head=num_attention_heads n_layer=num_hidden_layers \
                d_ff=ffn_dim"),
            CONTEXT,
            Act(&["activation_function"], "relu", spellings),
            TIED,
            Is("attention_bias,ffn_bias=enable_bias?true norm_gain,norm_offset=layer_norm_elementwise_affine?true"),
            Only("do_layer_norm_before", "true", "a norm before each part of a block"),
            Only("_remove_final_layer_norm", "false", "a norm before the head"),
            By(
                |k, c| k.only("word_embed_proj_dim", &json!(c.d_model), "the embedding is as wide as the stream"),
                |c| vec![("word_embed_proj_dim", json!(c.d_model))],
            ),
            Is("dropout_projection,dropout_ffn=dropout?0.1"),
            ATTENTION_DROPOUT,
            Idle("layerdrop activation_dropout"),
        ],
        tensors: &[
            EMBED_TOKENS,
            "pos_embed.weight=embed_positions.weight:from-2 ln1=layers.{}.self_attn_layer_norm \
             attn.qkv=layers.{}.self_attn.(q|k|v)_proj attn.out=layers.{}.self_attn.out_proj \
             ln2=layers.{}.final_layer_norm mlp.in=layers.{}.fc1 mlp.out=layers.{}.fc2 ln_final=final_layer_norm",
        ],
        ..FAMILY
    },
    // StarCoder (Li et al. 2023): GPT-2 with one key head for all.
    Family {
        names: ["GPT-BigCode", "gpt_bigcode", "GPTBigCodeForCausalLM"],
        prefix: "transformer.",
        keys: &[
            GPT_SIZES,
            GPT_DROPOUT,
            N_INNER,
            TIED,
            Act(&["activation_function"], "gelu_pytorch_tanh", spellings),
            Is("attention_scale=scale_attn_weights?true"),
            By(
                |k, c| {
                    c.n_kv_head = k.flag("multi_query", true)?.then_some(1);
                    Ok(())
                },
                |c| vec![("multi_query", json!(c.heads().n_kv_head == 1))],
            ),
            Idle(
                "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner validate_runner_input \
                 pre_allocate_kv_cache max_batch_size num_key_value_heads",
            ),
        ],
        tensors: &["embed.weight=wte.weight pos_embed.weight=wpe.weight ln1=h.{}.ln_1 \
                    attn.qkv=h.{}.attn.c_attn:grouped attn.out=h.{}.attn.c_proj ln2=h.{}.ln_2 mlp.in=h.{}.mlp.c_fc \
                    mlp.out=h.{}.mlp.c_proj ln_final=ln_f"],
        copies: WTE_COPY,
        idle: GPT_MASKS,
        ..FAMILY
    },
    // OLMo (Groeneveld et al. 2024): norms without gain and offset.
    Family {
        names: ["OLMo", "olmo", "OlmoForCausalLM"],
        always: &["positions=rotary norm_gain=false norm_offset=false norm_eps=1e-5 ffn_bias=false ffn_gated=true"],
        keys: &[
            SIZES,
            GROUPED,
            ANGLES,
            SILU,
            UNTIED,
            ATTENTION_BIAS,
            ATTENTION_DROPOUT,
            Only("clip_qkv", "null", "queries, keys and values are not clipped"),
        ],
        ..FAMILY
    },
    // Seed-OSS (ByteDance 2025): Llama with biases of queries, keys and values, and of the output by itself.
    Family {
        names: ["Seed-OSS", "seed_oss", "SeedOssForCausalLM"],
        always: LLAMAS,
        keys: &[
            LLAMA_KEYS,
            SILU,
            UNTIED,
            ATTENTION_BIAS,
            Is("attention_out_bias=attention_out_bias?false"),
            FFN_BIAS,
            ATTENTION_DROPOUT,
            Is("dropout_projection,dropout_ffn=residual_dropout?0.1"),
        ],
        usual: "context_length=524288 n_kv_head=8 d_head=128 attention_bias=true dropout_attention=0.1",
        ..FAMILY
    },
    // Ernie 4.5 (Baidu 2025), the dense ones: Llama whose rotary pairs are neighbours.
    Family {
        names: ["Ernie 4.5", "ernie4_5", "Ernie4_5ForCausalLM"],
        always: LLAMAS,
        keys: &[LLAMA_KEYS, SILU, TIED, USE_BIAS],
        usual: "context_length=131072 n_kv_head=2 d_head=128 norm_eps=1e-5 rotary_base=500000 attention_bias=false",
        pairs: RotaryPairs::Neighbours,
        ..FAMILY
    },
    // Helium (Kyutai 2025): Llama whose rotary pairs are neighbours, and whose attention output has no bias.
    Family {
        names: ["Helium", "helium", "HeliumForCausalLM"],
        always: &[GATED_RMS, "attention_out_bias=false"],
        keys: &[
            SIZES,
            CONTEXT,
            KV_HEADS,
            By(
                |k, c| {
                    let own = c.d_model / c.n_head.max(1);
                    k.only("head_dim", &json!(own), "hidden_size / num_attention_heads")
                },
                |c| vec![("head_dim", json!(c.d_model / c.n_head))],
            ),
            RMS_EPS,
            ANGLES,
            SILU,
            UNTIED,
            ATTENTION_BIAS,
            FFN_BIAS,
            ATTENTION_DROPOUT,
        ],
        usual: "context_length=4096 n_kv_head=20 norm_eps=1e-8 rotary_base=100000",
        pairs: RotaryPairs::Neighbours,
        ..FAMILY
    },
    // Phi-3 (Abdin et al. 2024): Llama with queries, keys and values in one matrix, gate and input in another.
    Family {
        names: ["Phi-3", "phi3", "Phi3ForCausalLM"],
        always: LLAMAS,
        keys: &[
            SIZES,
            GROUPED,
            RMS_EPS,
            By(read_phi3_rope, write_phi3_rope),
            Window("-", WindowBlocks::All),
            SILU,
            UNTIED,
            PHI_DROPOUT,
            ATTENTION_BIAS,
        ],
        usual: "context_length=4096 norm_eps=1e-5",
        tensors: &[
            EMBED_TOKENS,
            "attn.qkv=layers.{}.self_attn.qkv_proj:fused attn.out=layers.{}.self_attn.o_proj",
            GATED_TOGETHER,
            NORMS,
        ],
        ..FAMILY
    },
    // DistilBERT (Sanh et al. 2019): BERT without segments.
    Family {
        names: ["DistilBERT", "distilbert", "DistilBertForMaskedLM"],
        headless: "DistilBertModel",
        prefix: "distilbert.",
        always: &[BERTS, "norm_eps=1e-12"],
        keys: &[
            Is("vocab_size=vocab_size context_length=max_position_embeddings?2048 d_model=dim n_head=n_heads \
                n_layer=n_layers d_ff=hidden_dim"),
            Act(&["activation"], "gelu", spellings),
            TIED,
            Is("dropout_embedding,dropout_projection,dropout_ffn=dropout?0.1"),
            ATTENTION_DROPOUT,
            Idle("sinusoidal_pos_embds qa_dropout seq_classif_dropout"), // the table is stored
        ],
        usual: "context_length=512 dropout_attention=0.1",
        tensors: &[
            BERT_EMBEDDINGS,
            POSITIONS,
            "attn.qkv=transformer.layer.{}.attention.(q|k|v)_lin attn.out=transformer.layer.{}.attention.out_lin \
             ln1=transformer.layer.{}.sa_layer_norm mlp.in=transformer.layer.{}.ffn.lin1 \
             mlp.out=transformer.layer.{}.ffn.lin2 ln2=transformer.layer.{}.output_layer_norm",
        ],
        head: "head.dense=vocab_transform head.ln=vocab_layer_norm unembed.weight=vocab_projector.weight \
               unembed.bias=vocab_projector.bias",
        copies: &[("vocab_projector.weight", "embeddings.word_embeddings.weight")],
        idle: &["embeddings.position_ids", "pre_classifier.*", "classifier.*", "qa_outputs.*"],
        ..FAMILY
    },
    // RoBERTa (Liu et al. 2019): BERT with positions counted from 2, one segment as a rule, and another head.
    Family {
        names: ["RoBERTa", "roberta", "RobertaForMaskedLM"],
        headless: "RobertaModel",
        prefix: "roberta.",
        ..ROBERTAS
    },
    // XLM-RoBERTa (Conneau et al. 2020).
    Family { names: ["XLM-RoBERTa", "xlm-roberta", "XLMRobertaForMaskedLM"], headless: "XLMRobertaModel", ..ROBERTAS },
    // CamemBERT (Martin et al. 2020).
    Family { names: ["CamemBERT", "camembert", "CamembertForMaskedLM"], headless: "CamembertModel", ..ROBERTAS },
    // ELECTRA (Clark et al. 2020), BERT whose embedding may have a width of its own: the generator with its head, the
    // discriminator's hidden states.
    Family {
        names: ["ELECTRA", "electra", "ElectraForMaskedLM"],
        headless: "ElectraModel",
        prefix: "electra.",
        always: &[BERTS],
        keys: &[
            SIZES,
            ENCODER_KEYS,
            BERT_KEYS,
            GIVEN_CONTEXT,
            By(
                |k, c| {
                    let width = k.maybe_size(&["embedding_size"])?.unwrap_or(128);
                    c.d_embed = Some(width).filter(|width| *width != c.d_model);
                    Ok(())
                },
                write_embedding_size,
            ),
        ],
        tensors: &[BERT_EMBEDDINGS, POSITIONS, "embed.project=embeddings_project", BERT_BLOCKS],
        head: "head.dense=generator_predictions.dense head.ln=generator_predictions.LayerNorm \
               unembed.weight=generator_lm_head.weight unembed.bias=generator_lm_head.bias",
        copies: &[("generator_lm_head.weight", "embeddings.word_embeddings.weight")],
        idle: &["embeddings.position_ids", "discriminator_predictions.*", "classifier.*"],
        head_gelu: true,
        ..FAMILY
    },
    // ALBERT (Lan et al. 2020): BERT whose blocks are one, and whose embedding has a width of its own, from which a
    // product always leads to the stream.
    Family {
        names: ["ALBERT", "albert", "AlbertForMaskedLM"],
        headless: "AlbertModel",
        prefix: "albert.",
        always: &[BERTS, "shared_blocks=true"],
        keys: &[
            SIZES,
            ENCODER_KEYS,
            CONTEXT,
            By(
                |k, c| {
                    c.d_embed = Some(k.maybe_size(&["embedding_size"])?.unwrap_or(128));
                    Ok(())
                },
                write_embedding_size,
            ),
            Act(&["hidden_act"], "gelu_new", spellings),
            Only("num_hidden_groups", "1", "all blocks share one's parameters"),
            Only("inner_group_num", "1", "a block is one attention and one feed-forward network"),
            // its feed-forward network has no dropout
            Is("dropout_embedding,dropout_projection=hidden_dropout_prob?0 \
                dropout_attention=attention_probs_dropout_prob?0"),
            Idle(
                "classifier_dropout_prob down_scale_factor gap_size net_structure_type num_memory_blocks \
                 layers_to_keep",
            ),
        ],
        usual: "context_length=512",
        tensors: &[
            BERT_EMBEDDINGS,
            POSITIONS,
            "embed.project=encoder.embedding_hidden_mapping_in \
             blocks.0.attn.qkv=encoder.albert_layer_groups.0.albert_layers.0.attention.(query|key|value) \
             blocks.0.attn.out=encoder.albert_layer_groups.0.albert_layers.0.attention.dense \
             blocks.0.ln1=encoder.albert_layer_groups.0.albert_layers.0.attention.LayerNorm \
             blocks.0.mlp.in=encoder.albert_layer_groups.0.albert_layers.0.ffn \
             blocks.0.mlp.out=encoder.albert_layer_groups.0.albert_layers.0.ffn_output \
             blocks.0.ln2=encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm",
        ],
        head: "head.dense=predictions.dense head.ln=predictions.LayerNorm unembed.weight=predictions.decoder.weight \
               unembed.bias=predictions.bias",
        copies: &[
            ("predictions.decoder.weight", "embeddings.word_embeddings.weight"),
            ("predictions.decoder.bias", "predictions.bias"),
        ],
        idle: &["embeddings.position_ids", "embeddings.token_type_ids", "pooler.*", "sop_classifier.*"],
        ..FAMILY
    },
    // Qwen 3 (Yang et al. 2025): Llama with a norm of queries and keys.
    Family {
        names: ["Qwen3", "qwen3", "Qwen3ForCausalLM"],
        always: &[GATED_RMS, "qk_norm=head"],
        keys: &[LLAMA_KEYS, Window("4096", WindowBlocks::After), SILU, UNTIED, ATTENTION_BIAS, ATTENTION_DROPOUT],
        usual: "context_length=32768 n_kv_head=32 d_head=128",
        ..FAMILY
    },
    // Gemma (Gemma Team 2024): gains stored less one, the embedding scaled.
    Family {
        names: ["Gemma", "gemma", "GemmaForCausalLM"],
        always: &[GATED_RMS, "norm_gain_less_one=true"],
        keys: &[
            SIZES,
            GEMMA_KEYS,
            ANGLES,
            Act(&["hidden_act"], "gelu_pytorch_tanh", gemma_spellings),
            Idle("hidden_activation"), // read by no version of the model
        ],
        usual: "context_length=8192 n_kv_head=16 d_head=256",
        ..FAMILY
    },
    // Gemma 2 (Gemma Team 2024): norms before and after, every second block with a window, soft caps.
    Family {
        names: ["Gemma 2", "gemma2", "Gemma2ForCausalLM"],
        always: &[GATED_RMS, "norm_gain_less_one=true norm_place=both"],
        keys: &[
            SIZES,
            GEMMA_KEYS,
            ANGLES,
            Act(&["hidden_activation"], "gelu_pytorch_tanh", spellings),
            Idle("hidden_act"),
            Window("4096", WindowBlocks::Every(2)),
            QUERY_SCALAR,
            Cap("attention_softcap", "attn_logit_softcapping", "50"),
            Cap("logits_softcap", "final_logit_softcapping", "30"),
        ],
        usual: "context_length=8192 n_kv_head=4 d_head=256",
        tensors: &[EMBED_TOKENS, QKV, GATED, FOUR_NORMS],
        ..FAMILY
    },
    // Gemma 3 (Gemma Team 2025), its text: queries and keys are normalised, and blocks with a window have rotary angles
    // of their own.
    Family {
        names: ["Gemma 3", "gemma3_text", "Gemma3ForCausalLM"],
        always: &[GATED_RMS, "norm_gain_less_one=true norm_place=both qk_norm=head"],
        keys: &[
            SIZES,
            GEMMA_KEYS,
            SOFTCAPS,
            By(read_gemma3_rope, write_gemma3_rope),
            Act(&["hidden_activation"], "gelu_pytorch_tanh", spellings),
            Idle("hidden_act"),
            Window("4096", WindowBlocks::Every(6)),
            QUERY_SCALAR,
        ],
        usual: "context_length=131072 n_kv_head=4 d_head=256",
        tensors: &[EMBED_TOKENS, QKV, GATED, FOUR_NORMS],
        ..FAMILY
    },
    // OLMo 2 (OLMo Team 2025): norms on what each part adds, and of queries and keys over all heads.
    Family {
        names: ["OLMo 2", "olmo2", "Olmo2ForCausalLM"],
        always: &[GATED_RMS, "norm_place=branch qk_norm=width"],
        keys: &[LLAMA_KEYS, SILU, UNTIED, ATTENTION_BIAS, ATTENTION_DROPOUT],
        usual: "norm_eps=1e-5",
        tensors: &[
            EMBED_TOKENS,
            QKV,
            GATED,
            "ln1_post=layers.{}.post_attention_layernorm ln2_post=layers.{}.post_feedforward_layernorm ln_final=norm",
        ],
        ..FAMILY
    },
    // GPT-Neo (Black et al. 2021): GPT-2 whose scores are not scaled, every second block with a window.
    Family {
        names: ["GPT-Neo", "gpt_neo", "GPTNeoForCausalLM"],
        prefix: "transformer.",
        always: &["attention_bias=false attention_out_bias=true attention_scale=false"],
        keys: &[
            Is("vocab_size=vocab_size context_length=max_position_embeddings?2048 d_model=hidden_size \
                n_head=num_heads|num_attention_heads n_layer=num_layers|num_hidden_layers \
                d_ff=intermediate_size?4*d_model norm_eps=layer_norm_epsilon?1e-5 window=window_size?256"),
            By(read_attention_types, write_attention_types),
            Act(&["activation_function"], "gelu_new", spellings),
            TIED,
            Is("dropout_embedding=embed_dropout?0"),
            ATTENTION_DROPOUT,
            Is("dropout_projection,dropout_ffn=resid_dropout?0"),
            Idle("attention_layers"), // the same, written out
        ],
        tensors: &["embed.weight=wte.weight pos_embed.weight=wpe.weight ln1=h.{}.ln_1 \
                    attn.qkv=h.{}.attn.attention.(q|k|v)_proj attn.out=h.{}.attn.attention.out_proj ln2=h.{}.ln_2 \
                    mlp.in=h.{}.mlp.c_fc mlp.out=h.{}.mlp.c_proj ln_final=ln_f"],
        copies: WTE_COPY,
        idle: &["*.attn.attention.bias", "*.attn.attention.masked_bias"],
        ..FAMILY
    },
    // GPT-NeoX and Pythia (Biderman et al. 2023): both parts of a block side by side, part of each head turned.
    Family {
        names: ["GPT-NeoX", "gpt_neox", "GPTNeoXForCausalLM"],
        prefix: "gpt_neox.",
        always: &["positions=rotary"],
        keys: &[
            SIZES,
            CONTEXT,
            LAYER_EPS,
            Rope(Some(0.25), ["rotary_emb_base", "rotary_pct"]),
            Act(&["hidden_act"], "gelu", spellings),
            UNTIED,
            Choice("parallel", "use_parallel_residual", &[("true", "two-norms"), ("false", "no")], "true"),
            ATTENTION_BIAS,
            ATTENTION_DROPOUT,
            Is("dropout_embedding,dropout_projection,dropout_ffn=hidden_dropout?0"),
        ],
        usual: "attention_bias=true",
        tensors: &["embed.weight=embed_in.weight ln1=layers.{}.input_layernorm \
                    ln2=layers.{}.post_attention_layernorm attn.qkv=layers.{}.attention.query_key_value:grouped \
                    attn.out=layers.{}.attention.dense mlp.in=layers.{}.mlp.dense_h_to_4h \
                    mlp.out=layers.{}.mlp.dense_4h_to_h ln_final=final_layer_norm"],
        head: "unembed.weight=embed_out.weight",
        copies: &[("embed_out.weight", "embed_in.weight")],
        idle: &["*.attention.bias", "*.attention.masked_bias"],
        ..FAMILY
    },
    // Phi-1 to Phi-2 (Li et al. 2023): both parts of a block side by side after one norm, a bias of the head.
    Family {
        names: ["Phi", "phi", "PhiForCausalLM"],
        always: &["positions=rotary parallel=one-norm head_bias=true"],
        keys: &[
            SIZES,
            GROUPED,
            LAYER_EPS,
            Rope(Some(0.5), ROPE),
            Act(&["hidden_act"], "gelu_new", spellings),
            UNTIED,
            Only("qk_layernorm", "false", "queries and keys are not normalised with gain and offset"),
            PHI_DROPOUT,
        ],
        tensors: &[
            EMBED_TOKENS,
            "ln1=layers.{}.input_layernorm attn.qkv=layers.{}.self_attn.(q|k|v)_proj \
             attn.out=layers.{}.self_attn.dense mlp.in=layers.{}.mlp.fc1 mlp.out=layers.{}.mlp.fc2 \
             ln_final=final_layernorm",
        ],
        head: BIASED_HEAD,
        ..FAMILY
    },
    // GPT-J (Wang and Komatsuzaki 2021): rotary pairs are neighbours, both parts of a block side by side after one
    // norm.
    Family {
        names: ["GPT-J", "gptj", "GPTJForCausalLM"],
        prefix: "transformer.",
        always: &["positions=rotary parallel=one-norm attention_bias=false head_bias=true"],
        keys: &[
            GPT_SIZES,
            N_INNER,
            Is("rotary_dim=rotary_dim?64"),
            Act(&["activation_function"], "gelu_new", spellings),
            UNTIED,
            GPT_DROPOUT,
            Only("scale_attn_weights", "true", "scores are scaled"),
            Idle("rotary"),
        ],
        usual: "dropout_embedding=0 dropout_attention=0 dropout_projection=0",
        tensors: &["embed.weight=wte.weight ln1=h.{}.ln_1 attn.qkv=h.{}.attn.(q|k|v)_proj \
                    attn.out=h.{}.attn.out_proj mlp.in=h.{}.mlp.fc_in mlp.out=h.{}.mlp.fc_out ln_final=ln_f"],
        head: BIASED_HEAD,
        copies: WTE_COPY,
        idle: GPT_MASKS,
        pairs: RotaryPairs::Neighbours,
        ..FAMILY
    },
    // StableLM (Stability AI 2023): layer norms, part of each head turned, gated.
    Family {
        names: ["StableLM", "stablelm", "StableLmForCausalLM"],
        always: &["positions=rotary attention_out_bias=false ffn_bias=false ffn_gated=true"],
        keys: &[
            SIZES,
            CONTEXT,
            KV_HEADS,
            LAYER_EPS,
            Rope(Some(0.25), ROPE),
            SILU,
            UNTIED,
            Is("attention_bias=use_qkv_bias?false"),
            Choice("parallel", "use_parallel_residual", &[("true", "one-norm"), ("false", "no")], "false"),
            Only("qk_layernorm", "false", "queries and keys are not normalised with gains of each head"),
            ATTENTION_DROPOUT,
            Is("dropout_ffn=hidden_dropout?0"),
        ],
        usual: "context_length=4096 n_kv_head=32",
        ..FAMILY
    },
    // SmolLM 3 (Bakouch et al. 2025): Llama of which some blocks have no positions.
    Family {
        names: ["SmolLM3", "smollm3", "SmolLM3ForCausalLM"],
        always: LLAMAS,
        keys: &[
            LLAMA_KEYS,
            By(read_no_rope, |c| {
                let turned = blocks(c).map(|i| u8::from(c.rotary_dim_of(i) > 0));
                vec![("no_rope_layers", json!(turned.collect::<Vec<_>>()))]
            }),
            SILU,
            TIED,
            ATTENTION_BIAS,
            FFN_BIAS,
            ATTENTION_DROPOUT,
            Only("use_sliding_window", "false", "all blocks see all of the context"),
            Idle("sliding_window max_window_layers"),
        ],
        usual: "context_length=32768 n_kv_head=4 rotary_base=2000000",
        ..FAMILY
    },
    // Falcon (Almazrouei et al. 2023), without alibi: queries, keys and values in one matrix, one norm for both parts
    // of a block or one for each.
    Family {
        names: ["Falcon", "falcon", "FalconForCausalLM"],
        prefix: "transformer.",
        always: &["positions=rotary"],
        keys: &[
            Is("vocab_size=vocab_size context_length=max_position_embeddings?2048 d_model=hidden_size|n_embed \
                n_head=num_attention_heads|n_head n_layer=num_hidden_layers|n_layer d_ff=ffn_hidden_size?4*d_model \
                norm_eps=layer_norm_epsilon?1e-5"),
            ANGLES,
            By(read_falcon, write_falcon),
            Act(&["activation"], "gelu", spellings),
            TIED,
            Is("attention_bias,ffn_bias=bias?false"),
            Only("alibi", "false", "Falcon's alibi is scaled with the scores"),
            ATTENTION_DROPOUT,
            Is("dropout_ffn=hidden_dropout?0"),
        ],
        tensors: &["embed.weight=word_embeddings.weight ln1=h.{}.ln_attn:two-norms ln1=h.{}.input_layernorm:one-norm \
                    ln2=h.{}.ln_mlp:two-norms ln2=h.{}.post_attention_layernorm:one-norm \
                    attn.qkv=h.{}.self_attention.query_key_value:grouped attn.out=h.{}.self_attention.dense \
                    mlp.in=h.{}.mlp.dense_h_to_4h mlp.out=h.{}.mlp.dense_4h_to_h ln_final=ln_f"],
        copies: &[("lm_head.weight", "word_embeddings.weight")],
        ..FAMILY
    },
    // Command R (Cohere 2024): layer norms without offset, both parts of a block side by side after one norm, logits
    // scaled.
    Family {
        names: ["Cohere", "cohere", "CohereForCausalLM"],
        always: &[COHERES],
        keys: &[
            SIZES,
            COHERE_KEYS,
            Is("d_head=head_dim?-"),
            ANGLES,
            Only("use_qk_norm", "false", "queries and keys are not normalised with gains of each head"),
        ],
        usual: "context_length=8192 rotary_base=500000",
        pairs: RotaryPairs::Neighbours,
        ..FAMILY
    },
    // Command R7B (Cohere 2024): blocks with a window have positions, the others none.
    Family {
        names: ["Cohere 2", "cohere2", "Cohere2ForCausalLM"],
        always: &[COHERES],
        keys: &[
            SIZES,
            COHERE_KEYS,
            ANGLES,
            Window("4096", WindowBlocks::Every(4)),
            By(
                |_, c| {
                    if c.window == 0 {
                        c.positions = Positions::None;
                    }
                    c.rotary_layers = c.window_layers;
                    Ok(())
                },
                |c| {
                    let window = if c.window == 0 { c.context_length } else { c.window };
                    let kinds = layer_types(c, |i| c.rotary_dim_of(i) > 0);
                    vec![("sliding_window", json!(window)), ("layer_types", kinds)]
                },
            ),
            Idle(
                "order_of_interleaved_layers use_qk_norm head_dim position_embedding_type rotary_pct \
                 use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding layer_switch",
            ),
        ],
        usual: "context_length=8192",
        pairs: RotaryPairs::Neighbours,
        ..FAMILY
    },
    // GLM-4 (GLM Team 2024): norms before and after, half of each head turned, gate and input in one matrix.
    Family {
        names: ["GLM-4", "glm4", "Glm4ForCausalLM"],
        always: &[GATED_RMS, "norm_place=both attention_out_bias=false"],
        keys: &[SIZES, GROUPED, RMS_EPS, Rope(Some(0.5), ROPE), SILU, UNTIED, ATTENTION_BIAS, ATTENTION_DROPOUT],
        usual: "context_length=131072 n_kv_head=2 d_head=128 norm_eps=1.5625e-7 attention_bias=true",
        tensors: &[
            EMBED_TOKENS,
            QKV,
            GATED_TOGETHER,
            "ln1=layers.{}.input_layernorm ln1_post=layers.{}.post_self_attn_layernorm \
             ln2=layers.{}.post_attention_layernorm ln2_post=layers.{}.post_mlp_layernorm ln_final=norm",
        ],
        pairs: RotaryPairs::Neighbours,
        ..FAMILY
    },
    // Granite 3 (IBM 2024): Llama with factors of the embedding, the residual sums, the scores and the logits.
    Family {
        names: ["Granite", "granite", "GraniteForCausalLM"],
        always: LLAMAS,
        keys: &[
            LLAMA_KEYS,
            SILU,
            UNTIED,
            ATTENTION_BIAS,
            FFN_BIAS,
            ATTENTION_DROPOUT,
            Is("embedding_scale=embedding_multiplier?1 residual_scale=residual_multiplier?1"),
            By(
                |k, c| {
                    c.attention_factor = Some(k.number(&["attention_multiplier"], 1.0)?);
                    c.logits_scale = 1.0 / k.number(&["logits_scaling"], 1.0)?;
                    Ok(())
                },
                |c| {
                    let (scores, logits) = (c.score_scale(0), 1.0 / c.logits_scale);
                    vec![("attention_multiplier", json!(scores)), ("logits_scaling", json!(logits))]
                },
            ),
        ],
        ..FAMILY
    },
    // nanochat (Karpathy 2025): norms without gains, of the embedding and of each head's queries and keys too, squared
    // ReLU, bounded logits, and angles that turn the other way. Queries and keys are turned before they are normalised,
    // which is the same.
    Family {
        names: ["nanochat", "nanochat", "NanoChatForCausalLM"],
        always: &[
            "positions=rotary norm=rms norm_gain=false norm_offset=false",
            "ffn_bias=false embedding_norm=true qk_norm=head-plain",
        ],
        keys: &[
            LLAMA_KEYS,
            Act(&["hidden_act"], "relu2", spellings),
            Cap("logits_softcap", "final_logit_softcapping", "15"),
            UNTIED,
            ATTENTION_BIAS,
            ATTENTION_DROPOUT,
        ],
        tensors: &[EMBED_TOKENS, QKV, "mlp.in=layers.{}.mlp.fc1 mlp.out=layers.{}.mlp.fc2"],
        pairs: RotaryPairs::HalvesBack,
        ..FAMILY
    },
    // BLOOM (BigScience 2022): alibi, a norm after the embedding.
    Family {
        names: ["BLOOM", "bloom", "BloomForCausalLM"],
        prefix: "transformer.",
        always: &["positions=alibi embedding_norm=true activation=gelu-tanh"],
        keys: &[
            Is("vocab_size=vocab_size context_length=seq_length?2048 d_model=hidden_size|n_embed \
                n_head=n_head|num_attention_heads n_layer=n_layer|num_hidden_layers norm_eps=layer_norm_epsilon?1e-5"),
            FOURFOLD,
            TIED,
            Only("apply_residual_connection_post_layernorm", "false", "the stream is what is added to"),
            ATTENTION_DROPOUT,
            Is("dropout_projection,dropout_ffn=hidden_dropout?0"),
            Idle(
                "slow_but_exact masked_softmax_fusion bias_dropout_fusion skip_bias_add skip_bias_add_qkv \
                 attention_softmax_in_fp32 offset_alibi unk_token_id hidden_act",
            ),
        ],
        tensors: &["embed.weight=word_embeddings.weight embed_norm=word_embeddings_layernorm \
                    ln1=h.{}.input_layernorm attn.qkv=h.{}.self_attention.query_key_value:grouped \
                    attn.out=h.{}.self_attention.dense ln2=h.{}.post_attention_layernorm \
                    mlp.in=h.{}.mlp.dense_h_to_4h mlp.out=h.{}.mlp.dense_4h_to_h ln_final=ln_f"],
        copies: &[("lm_head.weight", "word_embeddings.weight")],
        ..FAMILY
    },
    // MPT (MosaicML 2023): alibi, no offsets.
    Family {
        names: ["MPT", "mpt", "MptForCausalLM"],
        prefix: "transformer.",
        always: &["positions=alibi norm_offset=false attention_bias=false ffn_bias=false activation=gelu-erf"],
        keys: &[
            Is("vocab_size=vocab_size context_length=max_seq_len?2048 d_model=d_model n_head=n_heads \
                n_layer=n_layers norm_eps=layer_norm_epsilon?1e-5"),
            FOURFOLD,
            Only("expansion_ratio", "4", "d_ff is 4 d_model"),
            Only("no_bias", "true", "MPT has no offsets"),
            Only("logit_scale", "null", "logits are as they are"),
            TIED,
            By(read_mpt, |c| {
                let attention = json!({ "softmax_scale": c.score_scale(0), "attn_pdrop": c.dropout.attention });
                vec![("attn_config", attention)]
            }),
            Is("dropout_embedding=emb_pdrop?0 dropout_projection,dropout_ffn=resid_pdrop?0"),
            Idle(
                "learned_pos_emb embedding_fraction norm_type init_device init_config verbose emb_init_std \
                 init_nonlinearity fan_mode init_div_is_residual emb_init_uniform_lim init_gain tokenizer_name \
                 model_name",
            ),
        ],
        tensors: &["embed.weight=wte.weight ln1=blocks.{}.norm_1 attn.qkv=blocks.{}.attn.Wqkv:fused \
                    attn.out=blocks.{}.attn.out_proj ln2=blocks.{}.norm_2 mlp.in=blocks.{}.ffn.up_proj \
                    mlp.out=blocks.{}.ffn.down_proj ln_final=norm_f"],
        copies: WTE_COPY,
        ..FAMILY
    },
];

// ---- what is read in a way of its own

type Answer = super::keys::Answer<()>;
type C = limpid_core::config::Config;

const PHI3_ANGLES: Key = Rope(Some(1.0), ROPE);

/// `su` and `yarn` are longrope here, and the length before scaling stands beside it.
fn read_phi3_rope(k: &Keys, c: &mut C) -> Answer {
    let mut map = k.map.clone();
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(angles) = map.get_mut(name).and_then(Value::as_object_mut) else { continue };
        let kind = angles.get("rope_type").or(angles.get("type")).and_then(Value::as_str);
        if kind.is_some_and(|kind| ["su", "yarn"].contains(&kind)) {
            angles.insert("rope_type".into(), json!("longrope"));
        }
    }
    map.entry("original_max_position_embeddings").or_insert(json!(4096));
    PHI3_ANGLES.read(&k.over(&map), c)?;
    k.find(&[
        "rope_scaling",
        "rope_parameters",
        "rope_theta",
        "partial_rotary_factor",
        "original_max_position_embeddings",
    ]);
    Ok(())
}

fn write_phi3_rope(c: &C) -> Entries {
    let mut entries = PHI3_ANGLES.write(c);
    if c.rotary_scaling.kind == RotaryKind::Longrope {
        entries.push(("original_max_position_embeddings", json!(c.rotary_scaling.context)));
    }
    entries
}

/// Angles of blocks with a window and without: nested in `rope_parameters`, or `rope_local_base_freq` beside
/// `rope_theta`, as files before transformers 5 have it. `rope_scaling` adds to those without.
fn read_gemma3_rope(k: &Keys, c: &mut C) -> Answer {
    let mut map = k.map.clone();
    let base = k.number(&["rope_local_base_freq"], 10_000.0)?;
    let all = k.find(&["rope_parameters"]).map_or(json!({}), |(_, value)| value.clone());
    let part = |kind: &str| all.get(kind).cloned().filter(|part| !part.is_null());
    let mut full = part("full_attention").unwrap_or(json!({ "rope_type": "default" }));
    if all != json!({}) && part("full_attention").or(part("sliding_attention")).is_none() {
        return Keys::wrong("rope_parameters", &all, "an object with full_attention and sliding_attention");
    }
    match k.find(&["rope_scaling"]).map(|(_, value)| (value, value.as_object(), full.as_object_mut())) {
        Some((_, Some(scaling), Some(full))) => full.extend(scaling.clone()),
        Some((value, None, _)) => return Keys::wrong("rope_scaling", value, "an object"),
        _ => {}
    }
    map.insert("rope_parameters".into(), full);
    map.retain(|key, _| !["rope_scaling", "original_max_position_embeddings"].contains(&key.as_str()));
    let full = k.over(&map);
    read_rope(&full, c, 1e6, None, ROPE)?;
    c.rotary_scaling.truncate = true; // transformers looks for it beside the two, where it is not
    let own = [c.rotary_base, base];
    let scaling = c.rotary_scaling;
    let sliding =
        serde_json::Map::from_iter([("rope_parameters".into(), part("sliding_attention").unwrap_or(json!({})))]);
    let sliding = k.over(&sliding);
    read_rope(&sliding, c, 1e4, None, ROPE)?;
    if c.rotary_scaling != RotaryScaling::NONE {
        return refuse(
            "`rope_parameters` scales the angles of sliding_attention: limpid scales those of the other blocks only",
        );
    }
    let given = part("sliding_attention").is_some_and(|part| part.get("rope_theta").is_some());
    c.rotary_base_window = Some(if given { c.rotary_base } else { own[1] });
    (c.rotary_base, c.rotary_scaling) = (own[0], scaling);
    k.find(&["rope_theta", "original_max_position_embeddings"]);
    Ok(())
}

fn write_gemma3_rope(c: &C) -> Entries {
    let full: HashMap<_, _> = ANGLES.write(c).into_iter().collect();
    let mut angles = full["rope_scaling"].as_object().cloned().unwrap_or_default();
    angles.insert("rope_theta".into(), full["rope_theta"].clone());
    angles.entry("rope_type").or_insert(json!("default"));
    let own = c.rotary_base_window.unwrap_or(c.rotary_base);
    let window = json!({ "rope_type": "default", "rope_theta": own });
    vec![("rope_parameters", json!({ "full_attention": angles, "sliding_attention": window }))]
}

/// `attention_types`: [[kinds, how often], ...].
fn read_attention_types(k: &Keys, c: &mut C) -> Answer {
    let usual = json!([[["global", "local"], 12]]);
    let value = k.find(&["attention_types"]).map_or(&usual, |(_, value)| value);
    let wrong =
        || Keys::wrong("attention_types", value, "a list of [kinds, how often], global or local for each block");
    let mut local = vec![];
    for item in value.as_array().into_iter().flatten() {
        let (kinds, times) = (item[0].as_array(), item[1].as_u64());
        let Some((kinds, times)) = kinds.zip(times.filter(|n| *n <= 4096)) else { return wrong() };
        let known = |kind: &Value| kind == "global" || kind == "local";
        if !kinds.iter().all(known) || kinds.len() * times as usize > 4096 {
            return wrong();
        }
        (0..times).for_each(|_| local.extend(kinds.iter().map(|kind| kind == "local")));
    }
    if local.len() != c.n_layer {
        return refuse(format!("`attention_types` is for {} blocks, and there are {}", local.len(), c.n_layer));
    }
    if !local.is_empty() {
        c.window_layers = pattern("attention_types", &local)?;
    }
    Ok(())
}

fn write_attention_types(c: &C) -> Entries {
    let kinds = blocks(c).map(|i| if c.window_of(i) > 0 { "local" } else { "global" });
    let mut entries = vec![("attention_types", json!([[kinds.collect::<Vec<_>>(), 1]]))];
    if c.window == 0 {
        entries.push(("window_size", json!(256))); // no block has it
    }
    entries
}

/// `no_rope_layers`: 1 for each block that has positions, as its name does not say.
fn read_no_rope(k: &Keys, c: &mut C) -> Answer {
    let interval = k.maybe_size(&["no_rope_layer_interval"])?.unwrap_or(4);
    let mut turned: Vec<bool> = blocks(c).map(|i| interval == 0 || (i + 1) % interval != 0).collect();
    if let Some(list) = k.list("no_rope_layers", c.n_layer)? {
        turned = list.iter().map(|item| item.as_u64() != Some(0)).collect();
    }
    if !turned.is_empty() {
        c.rotary_layers = pattern("no_rope_layers", &turned)?;
    }
    Ok(())
}

/// Which heads share keys, and how many norms a block has.
fn read_falcon(k: &Keys, c: &mut C) -> Answer {
    let (new, multi) = (k.flag("new_decoder_architecture", false)?, k.flag("multi_query", true)?);
    let (parallel, heads) = (k.flag("parallel_attn", true)?, k.maybe_size(&["num_kv_heads", "n_head_kv"])?);
    let norms = k.maybe_size(&["num_ln_in_parallel_attn"])?;
    c.n_kv_head = match (new, multi) {
        (true, _) => heads,
        (false, multi) => multi.then_some(1),
    };
    c.parallel = match (new, parallel, norms) {
        (true, true, None | Some(2)) => Parallel::TwoNorms,
        (true, true, Some(1)) | (false, true, None | Some(0 | 1)) => Parallel::OneNorm,
        (false, false, _) => Parallel::No,
        _ => {
            return refuse(format!(
                "`new_decoder_architecture` {new} with `parallel_attn` {parallel} and `num_ln_in_parallel_attn` \
                 {norms:?} is not a Falcon model"
            ));
        }
    };
    Ok(())
}

fn write_falcon(c: &C) -> Entries {
    let heads = c.heads();
    let new = c.parallel == Parallel::TwoNorms || ![1, heads.n_head].contains(&heads.n_kv_head);
    let norms = new.then_some(if c.parallel == Parallel::TwoNorms { 2 } else { 1 });
    vec![
        ("new_decoder_architecture", json!(new)),
        ("multi_query", json!(!new && heads.n_kv_head == 1)),
        ("num_kv_heads", json!(heads.n_kv_head)),
        ("parallel_attn", json!(c.parallel != Parallel::No)),
        ("num_ln_in_parallel_attn", json!(norms)),
        ("alibi", json!(false)),
    ]
}

/// `attn_config`, an object of its own.
fn read_mpt(k: &Keys, c: &mut C) -> Answer {
    let Some((name, value)) = k.find(&["attn_config"]) else { return Ok(()) };
    let Some(map) = value.as_object() else { return Keys::wrong(name, value, "an object") };
    let inner = k.over(map);
    inner.only("attn_type", &json!("multihead_attention"), "each head has keys of its own")?;
    inner.only("alibi", &json!(true), "positions are alibi's")?;
    inner.only("alibi_bias_max", &json!(8), "alibi's own slopes")?;
    inner.only("qk_ln", &json!(false), "queries and keys are not normalised")?;
    inner.only("prefix_lm", &json!(false), "a token sees those before it")?;
    inner.only("clip_qkv", &Value::Null, "queries, keys and values are not clipped")?;
    c.attention_factor = inner.find(&["softmax_scale"]).and_then(|(_, scale)| scale.as_f64());
    c.dropout.attention = inner.number(&["attn_pdrop"], 0.0)?;
    inner.find(&["attn_impl", "attn_uses_sequence_id", "model_type"]);
    k.rest_of(name, &inner);
    Ok(())
}
