//! Small built-in texts, `builtin:s0` and others, on which the study's documents work their examples. Each has a
//! tokenizer with exactly its words.

/// A document's example: a few sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Toy {
    /// Its name, after `builtin:`.
    pub name: &'static str,
    /// Its sentences or passages, in order.
    pub documents: &'static [&'static str],
    /// The name of its tokenizer ([`Tokenizer::named`](limpid_tokenizer::Tokenizer::named)).
    pub tokenizer: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
}

/// Every example.
pub const TOYS: &[Toy] = &[
    Toy {
        name: "s0",
        documents: &["cat eat mouse", "dog chase cat", "mouse eat cheese"],
        tokenizer: "s0",
        about: "three sentences of six words (\"Notations\")",
    },
    Toy {
        name: "s0-three",
        documents: &["mouse dog"],
        tokenizer: "s0-three",
        about: "two of three words, an example of one-hot rows (\"Notations\")",
    },
    Toy {
        name: "s1",
        documents: &[
            "Chapter 1: Building Rapport and Capturing",
            ".\nBy mastering the art of identifying underlying motivations and desires, we equip ourselves with",
            " professionals to truly understand their customers' needs, concerns, and desires. By actively",
            " aspect of using technology in sales is mastering digital communication tools. These tools include email",
            " and setting clear objectives before entering a negotiation.\n3. Developing Effective Negotiation \
             Techniques",
        ],
        tokenizer: "cl100k_base",
        about: "a heading and four windows of a textbook, all that is shown of it (\"Zero-to-Hero\")",
    },
    Toy {
        name: "s3",
        documents: &["dog jumps around cat man is helping cat"],
        tokenizer: "s3",
        about: "eight words, seven of them different (\"Decoder-Only Transformer Architecture\")",
    },
];

impl Toy {
    /// The example of that name.
    pub fn named(name: &str) -> Option<&'static Toy> {
        TOYS.iter().find(|toy| toy.name == name)
    }
}
