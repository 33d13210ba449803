//! limpid: a GPT that you can see through.
pub mod config;
pub mod ops;
pub mod model;
pub mod backend;
pub mod nearest;
pub mod tokenizer;
