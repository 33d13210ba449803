//! The GPU's tests, in one program: `cargo test --workspace --features gpu --test backend ops::` runs those of ops.rs.
//! Without a GPU, real or in software, they say so and pass, or fail where `GPU_REQUIRED` is set.
#![cfg(feature = "gpu")]

#[path = "../../../limpid/tests/library/common/mod.rs"]
mod common;
#[path = "../device/mod.rs"]
mod device;
mod lost;
mod ops;
mod parity;
#[path = "../../../limpid/tests/library/pytorch/mod.rs"]
mod pytorch;
#[path = "../../../limpid/tests/library/random_config/mod.rs"]
mod random_config;
mod runs;
