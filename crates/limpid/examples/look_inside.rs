//! Looks inside a model at work: `cargo run --release --example look_inside -- runs/1 "to be or not to be"`.

use limpid::{Error, Lm, Pooling};

/// The token that each token of a text attends to most, in each head of the first block: (head, token, the token
/// attended to).
pub fn looks_at(lm: &Lm, text: &str) -> Result<Vec<(usize, usize, usize)>, Error> {
    let pattern = lm.trace(text, |trace| trace.get("blocks.0.attn.hook_pattern"))?;
    let [_, heads, queries, keys] = pattern.shape[..] else { panic!("its axes are {:?}", pattern.axes) };
    let most = |(head, query): (usize, usize)| {
        let weight = |key: &usize| pattern.at(&[0, head, query, *key]).unwrap_or(0.0);
        let key = (0..keys).max_by(|a, b| weight(a).total_cmp(&weight(b))).unwrap_or(0);
        (head, query, key)
    };
    Ok((0..heads).flat_map(|head| (0..queries).map(move |query| (head, query))).map(most).collect())
}

/// How similar two texts are to the model: the cosine of their vectors.
pub fn alike(lm: &Lm, a: &str, b: &str) -> Result<f64, Error> {
    let (a, b) = (lm.embed(a, Pooling::Mean)?, lm.embed(b, Pooling::Mean)?);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    Ok(dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt())
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let (lm, text) = (Lm::open(arguments.next().expect("a model"))?, arguments.next().expect("a text"));
    let pieces = lm.tokenizer()?.pieces(&lm.encode(&text)?)?;
    for (head, query, key) in looks_at(&lm, &text)? {
        println!("head {head}: {:?} looks at {:?}", pieces[query], pieces[key]);
    }
    println!("{:.3} alike, with the words the other way round", alike(&lm, &text, &reversed(&text))?);
    Ok(())
}

fn reversed(text: &str) -> String {
    text.split(' ').rev().collect::<Vec<_>>().join(" ")
}
