//! Texts as vectors.
