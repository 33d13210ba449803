//! Where the numbers 0.7979 and 0.044715 of GELU by tanh come from: a fit of two numbers.

use super::Topic;
use limpid_core::numeric::math::reference::normal;

/// Where 0.7979 and 0.044715 come from.
pub(super) const TOPIC: Topic = Topic {
    name: "gelu-fit",
    title: "Where do the numbers 0.7979 and 0.044715 of GELU come from?",
    about: "Fits ½(1 + tanh(β(x + γx³))) to the normal distribution Φ(x) on 801 points from −4 to 4 by least squares \
            (Gauss and Newton), and x times it to GELU, x Φ(x). Nothing is random: every seed gives the same numbers.",
    teach: |class| {
        let held = (2.0 / std::f64::consts::PI).sqrt();
        let fits = [
            ("Φ", fit(|_| 1.0, None)),
            ("GELU", fit(|x| x, None)),
            ("GELU, β = √(2/π)", fit(|x| x, Some(held))),
            ("as published", (held, 0.044_715)),
        ];
        let (mut rows, mut errors) = (vec![], vec![]);
        for (name, (beta, gamma)) in &fits {
            let differences = points().map(|x| x * (normal(x) - curve(*beta, *gamma, x)));
            let (squares, most) = differences.fold((0.0, 0.0f64), |(sum, most), d| (sum + d * d, most.max(d.abs())));
            let root = (squares / points().count() as f64).sqrt();
            let [rms, greatest] = [root, most].map(|error| format!("{error:.1e}"));
            rows.push(row![name, format!("{beta:.4}"), format!("{gamma:.5}"), rms, greatest]);
            errors.push((root, most));
        }
        let headers = ["fitted to", "β", "γ", "root mean square of GELU's error", "greatest"];
        class.table("Least squares", headers, rows);
        let (phi, gelu, only) = (fits[0].1, fits[1].1, fits[2].1);
        let off =
            [phi, gelu, only].map(|(_, gamma)| (gamma - 0.044_715).abs()).into_iter().fold(f64::INFINITY, f64::min);
        class.claim("The best β is near √(2/π) = 0.7979, where the slope at 0 is Φ's");
        class.between("fitted to Φ", phi.0, 0.796, 0.801);
        class.between("to GELU", gelu.0, 0.796, 0.801);
        class.claim("The best γ is near 0.0447");
        class.between("fitted to Φ", phi.1, 0.0430, 0.0460);
        class.between("to GELU", gelu.1, 0.0430, 0.0460);
        class.between("β held", only.1, 0.0440, 0.0450);
        class.claim(
            "0.044715 is near the best, not at it, and no fit here gives exactly this number. Its error is greater \
             than that of the fit, but nowhere large",
        );
        class.at_least("least distance of a fitted γ from it", off, 1e-4);
        class.at_least("root mean square, as published / fitted", errors[3].0 / errors[1].0, 1.01);
        class.at_most("greatest error of GELU, as published", errors[3].1, 5e-4);
        Ok(())
    },
};

/// From −4 to 4.
fn points() -> impl Iterator<Item = f64> + Clone {
    (-400..=400).map(|i| f64::from(i) / 100.0)
}

fn curve(beta: f64, gamma: f64, x: f64) -> f64 {
    0.5 * (1.0 + (beta * (x + gamma * x * x * x)).tanh())
}

/// β and γ for the least sum of (weight (Φ − curve))², β held if it is given.
fn fit(weight: fn(f64) -> f64, held: Option<f64>) -> (f64, f64) {
    let mut beta = held.unwrap_or(1.0);
    let mut gamma = 0.0;
    for _ in 0..50 {
        // the normal equations of the curve's slopes b and g along β and γ: [bb bg; bg gg] step = [br gr]
        let (mut bb, mut bg, mut gg, mut br, mut gr) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for x in points() {
            let y = curve(beta, gamma, x);
            let w = weight(x);
            let slope = w * 2.0 * y * (1.0 - y);
            let (b, g, r) = (slope * (x + gamma * x * x * x), slope * beta * x * x * x, w * (normal(x) - y));
            (bb, bg, gg, br, gr) = (bb + b * b, bg + b * g, gg + g * g, br + b * r, gr + g * r);
        }
        if held.is_some() {
            gamma += gr / gg;
        } else {
            let det = bb * gg - bg * bg;
            (beta, gamma) = (beta + (gg * br - bg * gr) / det, gamma + (bb * gr - bg * br) / det);
        }
    }
    (beta, gamma)
}
