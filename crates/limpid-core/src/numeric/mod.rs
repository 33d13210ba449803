//! Numbers, before anything is made of them: which instructions compute them ([`simd`]), functions that have the same
//! bits on every machine ([`math`]), random draws ([`random`]), and how they are stored: as bytes of a type
//! ([`element`]), as 16-bit floats ([`half`]), as ggml's blocks ([`blocks`]).

pub mod blocks;
pub mod element;
pub mod half;
pub mod math;
pub mod random;
pub mod simd;
