//! Walks: the five documents on live models, step by step.

use limpid::walk::Walk;

// ---- what is written

#[test]
fn every_walk_is_read() {
    let walks = Walk::all();
    assert_eq!(walks.iter().map(|walk| walk.name.as_str()).collect::<Vec<_>>(), Walk::ALL);
    assert_eq!(walks.iter().map(|walk| walk.steps.len()).sum::<usize>(), 132);
}
