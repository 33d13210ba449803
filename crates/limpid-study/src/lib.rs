//! Study: [`walk`] reads five documents on the transformer on live models, and [`lessons`] are short experiments that test common claims
//! about transformers.
//!
//! Nothing of what limpid is needs this crate; it looks at models as any other program that uses limpid can.

pub mod lessons;
pub mod walk;
