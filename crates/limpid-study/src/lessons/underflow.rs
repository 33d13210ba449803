//! Why a loss is a sum of logarithms: a product of probabilities is 0 in floating point after a few hundred tokens.

use super::Topic;
use limpid_core::numeric::random::{site, uniform};

/// ln of the number below which f32 and f64 round to 0: half of the least that they have.
const LEAST: [f64; 2] = [150.0 * std::f64::consts::LN_2, 1075.0 * std::f64::consts::LN_2];

/// Why a loss is a sum of logarithms.
pub(super) const TOPIC: Topic = Topic {
    name: "underflow",
    title: "Why is the loss a sum of logarithms, and not a product of probabilities?",
    about: "Multiplies the probabilities of n tokens, 1/V each, in f32 and f64 until the product is 0, and adds up \
            their logarithms. Then it does so with 5,000 tokens whose probabilities are drawn between 0 and 1.",
    teach: |class| {
        let sizes = [2u32, 6, 62, 50_257];
        let mut rows = vec![];
        let mut far = [0.0f64; 2];
        let mut off = 0.0f64;
        for v in sizes {
            let p = 1.0 / f64::from(v);
            let ln = f64::from(v).ln();
            let (mut narrow, mut wide, mut at) = (1.0f32, 1.0f64, [0u32; 2]);
            for n in 1.. {
                (narrow, wide) = (narrow * p as f32, wide * p);
                for (at, zero) in at.iter_mut().zip([narrow == 0.0, wide == 0.0]) {
                    *at = if zero && *at == 0 { n } else { *at };
                }
                if !at.contains(&0) {
                    break;
                }
            }
            let sum: f64 = (0..at[1]).map(|_| p.ln()).sum();
            off = off.max((sum / (-f64::from(at[1]) * ln) - 1.0).abs());
            for (far, (at, least)) in far.iter_mut().zip(at.into_iter().zip(LEAST)) {
                *far = far.max((f64::from(at) - least / ln).abs());
            }
            rows.push(row![v, at[0], at[1], format!("{sum:.1}")]);
        }
        let headers = ["V", "f32: 0 from n", "f64: 0 from n", "sum of logarithms there"];
        class.table("Products of n probabilities 1/V", headers, rows);

        let n = 5_000;
        let drawn: Vec<f64> = (0..n).map(|i| 1.0 - uniform(class.seed, site("probability"), i)).collect();
        let product: f64 = drawn.iter().product();
        let sum: f64 = drawn.iter().map(|p| p.ln()).sum();
        let loss = -sum / n as f64;
        let headers = ["tokens", "product", "sum of logarithms", "loss"];
        let row = row![n, product, format!("{sum:.1}"), format!("{loss:.4}")];
        class.table("A text whose probabilities are drawn", headers, [row]);
        class.claim("A product of n probabilities 1/V is 0 from about 104 / ln V tokens on in f32, 745 / ln V in f64");
        class.at_most("farthest from that in f32, in tokens", far[0], 1.5);
        class.at_most("in f64", far[1], 1.5);
        class.claim("The sum of logarithms is still there");
        class.at_most("greatest relative error", off, 1e-10);
        class.claim(
            "A product of 5,000 tokens says nothing, their mean logarithm does: of uniform draws its negative, the \
             loss, is near 1",
        );
        class.between("product", product, 0.0, 0.0);
        class.between("loss", loss, 0.93, 1.07);
        Ok(())
    },
};
