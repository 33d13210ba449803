//! What test files share: a small model, a comparison that says where it failed, and made-up numbers.
#![allow(dead_code, unused_imports)] // each test file uses its own part

pub mod counting;
pub mod filled;
pub mod folder;
pub mod mutate;
pub mod sequences;

use limpid::backend::Backend;
use limpid::config::{Activation, Config};
use limpid::model::Model;
use limpid::numeric::random;

/// Two small blocks, of sizes that are no multiples of a vector's.
pub fn tiny() -> Config {
    Config {
        vocab_size: 17,
        context_length: 12,
        d_model: 24,
        n_head: 3,
        n_layer: 2,
        d_ff: 40,
        activation: Activation::GeluTanh,
        ..Config::preset("nanogpt-cpu").unwrap()
    }
}

/// The values of every parameter and of its gradient.
pub fn weights(model: &Model, backend: &dyn Backend) -> Vec<Vec<f32>> {
    let regions = model.params.iter().flat_map(|p| [p.region, p.region.grad()]);
    regions.map(|region| backend.read(region).unwrap()).collect()
}

/// Whether this is a process of its own for the test called `name` (`module::test`), with nobody else in it. If not,
/// runs the test in one, which must succeed and print `says`.
pub fn alone(name: &str, says: &str) -> bool {
    const CHILD: &str = "LIMPID_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let out = child
        .args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let (said, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains(says), "{said}{errors}");
    false
}

/// Fails if an element of `got` is farther from `want` than `tolerance` times the greatest element of `want`: sums
/// round in proportion to their greatest terms, and a tensor's elements are sums of the same terms. Returns the
/// worst error in that measure.
#[track_caller]
pub fn assert_close(what: &str, got: &[f64], want: &[f64], tolerance: f64) -> f64 {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    let scale = want.iter().filter(|w| w.is_finite()).fold(0f64, |top, w| top.max(w.abs()));
    let far = |i: usize| if got[i] == want[i] { 0.0 } else { (got[i] - want[i]).abs() }; // infinities may be equal
    let Some(i) = (0..got.len()).max_by(|&a, &b| far(a).total_cmp(&far(b))) else { return 0.0 };
    let (off, allowed) = (far(i), tolerance * scale);
    assert!(off <= allowed, "{what}[{i}]: got {}, want {}, off by {off:.1e}, allowed {allowed:.1e}", got[i], want[i]);
    if off == 0.0 { 0.0 } else { off / scale }
}

/// f32 values, exactly.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// (rows,cols) to (cols,rows).
pub fn transpose(a: &[f64], cols: usize) -> Vec<f64> {
    (0..cols).flat_map(|j| a.iter().skip(j).step_by(cols).copied()).collect()
}

/// f64 values, rounded.
pub fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|v| *v as f32).collect()
}

/// `n` standard normals, exactly f32 values.
pub fn normals(site: &str, n: usize) -> Vec<f64> {
    (0..n as u64).map(|i| f64::from(random::normal(1, random::site(site), i) as f32)).collect()
}

/// `n` ids below `vocab_size`.
pub fn ids(site: &str, n: usize, vocab_size: usize) -> Vec<u32> {
    (0..n as u64).map(|i| random::below(1, random::site(site), i, vocab_size as u64) as u32).collect()
}
