//! Which token each token attends to most: `cargo run --release --example look_inside -- runs/1 "to be or not to be"`.
use limpid::{Error, Lm};

/// For each token the place that it attends to most, in one head.
pub fn attends_to(lm: &Lm, text: &str, block: usize, head: usize) -> Result<Vec<usize>, Error> {
    let pattern = lm.trace(text)?.get(&format!("blocks.{block}.attn.hook_pattern"))?;
    let rows = pattern.slice("head", head).expect("the model has this head"); // [batch query_pos key_pos]
    let most = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
    Ok(rows.values.chunks(rows.shape[2]).map(most).collect())
}

fn main() -> Result<(), Error> {
    let [_, model, text] = &std::env::args().collect::<Vec<_>>()[..] else { panic!("give a model and a text") };
    attends_to(&Lm::open(model)?, text, 0, 0).map(|tokens| println!("{tokens:?}"))
}
