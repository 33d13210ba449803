//! Presets: the systems of the documents limpid was made from, published models, and small sizes to train first.
//! Each has its model, the training settings that differ from the defaults, and a tokenizer. docs/presets.md says
//! why.

use super::{Activation, Config, ConfigError, Dropout, Mask, NormKind, NormPlace, Positions, RotaryScaling, unknown};

/// A named model, with settings and a tokenizer for it.
#[derive(Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// The model. Training takes the vocabulary of the tokenizer instead.
    pub model: Config,
    /// Settings of its training that differ from the defaults, by name.
    pub training: &'static [(&'static str, &'static str)],
    /// The tokenizer to train with.
    pub tokenizer: &'static str,
}

/// Names of the presets.
pub const PRESETS: &[&str] = &{
    let (mut names, mut i) = ([""; Preset::ALL.len()], 0);
    while i < names.len() {
        names[i] = Preset::ALL[i].name;
        i += 1;
    }
    names
};

impl Preset {
    /// A preset by name; `_` and `-` are the same, case does not matter.
    ///
    /// # Errors
    /// If there is none; the nearest is named.
    pub fn named(name: &str) -> Result<&'static Preset, ConfigError> {
        let own = name.to_lowercase().replace('_', "-");
        Preset::ALL.iter().find(|preset| preset.name == own).ok_or_else(|| unknown("preset", name, PRESETS))
    }

    /// All, in the order of docs/presets.md.
    pub const ALL: &'static [Preset] = &[
        // the recipe is the best that was measured in about half a minute on two cores
        Preset { name: "nano", model: NANO, training: FAST, tokenizer: "bpe" },
        Preset { name: "nanogpt-cpu", model: NANOGPT, training: &[], tokenizer: "char" },
        Preset {
            name: "baby",
            model: Config {
                context_length: 256,
                d_model: 384,
                n_head: 6,
                n_layer: 6,
                d_ff: 1536,
                dropout: Dropout::everywhere(0.2),
                ..NANOGPT
            },
            training: &[("batch_size", "64"), ("steps", "5000")],
            tokenizer: "char",
        },
        Preset {
            name: "notations",
            model: Config {
                vocab_size: 6,
                context_length: 64,
                d_model: 128,
                n_head: 4,
                n_layer: 4,
                d_ff: 512,
                positions: Positions::SinusoidalOneBased,
                attention_bias: false,
                activation: Activation::GeluErf,
                tied_head: false,
                dropout: Dropout { ffn: 0.0, ..Dropout::everywhere(0.1) },
                ..Config::DEFAULT
            },
            training: &[],
            tokenizer: "word",
        },
        Preset {
            name: "zero-to-hero",
            model: Config {
                vocab_size: 3771,
                context_length: 16,
                d_model: 64,
                n_head: 4,
                n_layer: 4,
                d_ff: 256,
                positions: Positions::Sinusoidal,
                norm_place: NormPlace::Post,
                final_norm: false,
                attention_bias: false,
                activation: Activation::Relu,
                tied_head: false,
                head_bias: true,
                ..Config::DEFAULT
            },
            training: &[("batch_size", "4"), ("steps", "5000")],
            tokenizer: "bpe",
        },
        Preset {
            name: "formulated-gpt",
            model: Config { norm_place: NormPlace::Post, final_norm: false, ..FORMULATED },
            training: LARGE,
            tokenizer: "bpe",
        },
        Preset { name: "formulated-gpt2", model: FORMULATED, training: LARGE, tokenizer: "bpe" },
        Preset {
            name: "formulated-bert",
            model: Config {
                norm_place: NormPlace::Post,
                final_norm: false,
                mask: Mask::Bidirectional,
                activation: Activation::Relu,
                n_segment: 2,
                ..FORMULATED
            },
            training: LARGE,
            tokenizer: "word",
        },
        Preset {
            name: "decoder-readme",
            model: Config {
                vocab_size: 7,
                context_length: 4,
                d_model: 6,
                n_head: 3,
                n_layer: 1,
                d_ff: 24,
                final_norm: false,
                attention_bias: false,
                activation: Activation::Relu,
                tied_head: false,
                head_bias: true,
                dropout: Dropout { ffn: 0.1, ..Dropout::NONE },
                ..Config::DEFAULT
            },
            training: &[("batch_size", "2"), ("steps", "1000"), ("learning_rate", "3e-3"), ("warmup_steps", "20")],
            tokenizer: "word",
        },
        Preset {
            name: "llmc-gpt2",
            model: Config::DEFAULT,
            training: &[
                ("batch_size", "4"),
                ("context", "64"),
                ("steps", "40"),
                ("learning_rate", "1e-4"),
                ("min_learning_rate", "1e-4"),
                ("warmup_steps", "0"),
                ("schedule", "constant"),
                ("beta2", "0.999"),
                ("weight_decay", "0"),
                ("clip", "0"),
                ("eval_every", "10"),
            ],
            tokenizer: "gpt2",
        },
        Preset {
            name: "openai-gpt",
            model: Config {
                vocab_size: 40_478,
                context_length: 512,
                norm_place: NormPlace::Post,
                final_norm: false,
                dropout: Dropout::everywhere(0.1),
                ..Config::DEFAULT
            },
            training: LARGE,
            tokenizer: "bpe",
        },
        Preset { name: "gpt2", model: gpt2(768, 12, 12), training: LARGE, tokenizer: "gpt2" },
        Preset { name: "gpt2-medium", model: gpt2(1024, 16, 24), training: LARGE, tokenizer: "gpt2" },
        Preset { name: "gpt2-large", model: gpt2(1280, 20, 36), training: LARGE, tokenizer: "gpt2" },
        Preset { name: "gpt2-xl", model: gpt2(1600, 25, 48), training: LARGE, tokenizer: "gpt2" },
        Preset {
            name: "bert-base-uncased",
            model: Config {
                vocab_size: 30_522,
                context_length: 512,
                n_segment: 2,
                norm_place: NormPlace::Post,
                final_norm: false,
                embedding_norm: true,
                norm_eps: 1e-12,
                mask: Mask::Bidirectional,
                activation: Activation::GeluErf,
                head_bias: true,
                head_transform: true,
                dropout: Dropout::everywhere(0.1),
                ..Config::DEFAULT
            },
            training: LARGE,
            tokenizer: "word",
        },
        Preset {
            name: "nano-llama",
            model: Config { d_ff: 344, ..llama(NANO, 128, 4, 2, 4) },
            training: FAST,
            tokenizer: "bpe",
        },
        Preset {
            name: "llama-3.2-1b",
            model: Config {
                vocab_size: 128_256,
                context_length: 131_072,
                rotary_base: 500_000.0,
                rotary_scaling: RotaryScaling { factor: 32.0, context: 8192, ..RotaryScaling::NONE },
                ..llama(Config::DEFAULT, 2048, 32, 8, 16)
            },
            training: LARGE,
            tokenizer: "bpe",
        },
    ];
}

/// A short training of a small model.
const FAST: &[(&str, &str)] =
    &[("steps", "1000"), ("optimizer", "muon"), ("learning_rate", "3e-3"), ("min_learning_rate", "3e-4")];

/// A training of a model of GPT-2's size, far shorter than the published ones.
const LARGE: &[(&str, &str)] = &[
    ("steps", "10000"),
    ("batch_size", "4"),
    ("learning_rate", "6e-4"),
    ("min_learning_rate", "6e-5"),
    ("warmup_steps", "700"),
    ("beta2", "0.95"),
    ("init_std", "0.02"),
];

const NANO: Config = Config {
    vocab_size: 65,
    context_length: 64,
    d_model: 128,
    n_head: 4,
    n_layer: 4,
    d_ff: 512,
    norm_offset: false,
    attention_bias: false,
    ffn_bias: false,
    ..Config::DEFAULT
};

const NANOGPT: Config = Config { activation: Activation::GeluErf, ..NANO };

const FORMULATED: Config = Config {
    vocab_size: 40_478,
    context_length: 512,
    attention_bias: false,
    activation: Activation::GeluSigmoid,
    ..Config::DEFAULT
};

const fn gpt2(d_model: usize, n_head: usize, n_layer: usize) -> Config {
    Config { d_model, n_head, n_layer, d_ff: 4 * d_model, dropout: Dropout::everywhere(0.1), ..Config::DEFAULT }
}

const fn llama(from: Config, d_model: usize, n_head: usize, n_kv_head: usize, n_layer: usize) -> Config {
    Config {
        d_model,
        n_head,
        n_kv_head: Some(n_kv_head),
        n_layer,
        d_ff: 4 * d_model,
        positions: Positions::Rotary,
        norm: NormKind::Rms,
        norm_offset: false,
        attention_bias: false,
        ffn_bias: false,
        activation: Activation::Silu,
        ffn_gated: true,
        ..from
    }
}
