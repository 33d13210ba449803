//! What a dimension of the token table separates after training: the words along its first direction, and names apart
//! from the rest.

use super::Topic;
use super::training::{Study, Text};
use limpid_data::stories::GRAMMAR;
use limpid_draw::view::View;
use limpid_tokenizer::TokenizerKind;
use limpid_trace::labels::label;

/// What a dimension separates.
pub(super) const TOPIC: Topic = Topic {
    name: "embedding-dimension",
    title: "What does a dimension of the embedding mean?",
    about: "Trains a model of one block, d_model 32, on stories as words, and looks at its token table before and \
            after: the share of the variance along its first direction (the eigenvector of the covariance with the \
            greatest eigenvalue), the words at either end of it, and how far the names are from the other words along \
            each coordinate, in standard deviations.",
    teach: |class| {
        let text = Text::new(300_000, TokenizerKind::Word)?;
        let mut study = Study::judged()?;
        study.config.n_layer = 1;
        study.recipe.steps = 400;
        let width = study.config.d_model;
        let course = class.train(&text, &[("stories as words".into(), study)])?.remove(0);
        let words: Vec<String> =
            (0..text.tokenizer.vocab_size() as u32).map(|id| text.tokenizer.piece(id)).collect::<Result<_, _>>()?;
        let names = names();
        let is_name: Vec<bool> = words.iter().map(|word| names.contains(&word.as_str())).collect();
        let tables = course.tables.map(|table| Table::new(&table, width));
        let seen = tables.each_ref().map(|table| {
            let (share, along) = table.first();
            let apart = |j: usize| apart(&table.column(j), &is_name);
            let best = (0..width).max_by(|a, b| apart(*a).total_cmp(&apart(*b))).unwrap_or(0);
            (share, along, apart(best), best)
        });
        let mut counts = vec![1.0; words.len()];
        (0..text.train.len()).for_each(|i| counts[text.train.id(i) as usize] += 1.0);
        let counts: Vec<f64> = counts.into_iter().map(f64::ln).collect();
        let ends = |title: &str, along: &[f64]| {
            let mut order: Vec<usize> = (0..words.len()).collect();
            order.sort_by(|a, b| along[*a].total_cmp(&along[*b]));
            let some = |ids: &[usize]| ids.iter().map(|i| label(&words[*i])).collect::<Vec<_>>().join(" ");
            let [one, other] = [some(&order[..10]), some(&order[order.len() - 10..])];
            View::Sentence { text: format!("{title}: {one}  ...  {other}"), holds: None }
        };
        let best = seen[1].3;
        let row = |(when, (share, _, apart, _)): (&str, &(f64, Vec<f64>, f64, usize))| {
            row![when, format!("{:.1} %", 100.0 * share), format!("{apart:.2}")]
        };
        let rows = ["before", "after"].into_iter().zip(&seen).map(row);
        class.table("The token table", ["training", "share of the first direction", "names apart by"], rows);
        class.show(ends("The words at either end of the first direction before training", &seen[0].1));
        class.show(ends("After training", &seen[1].1));
        let title = format!("Along coordinate {best}, which separates names most, after training");
        class.show(ends(&title, &tables[1].column(best)));
        let [(share_before, _, apart_before, _), (share, along, apart, _)] = &seen;
        class.claim("Training gathers variance: the first direction has more of it than before");
        class.at_least("share after / before", share / share_before, 2.0);
        class.claim("The first direction is how frequent a word is");
        class.at_least("correlation with the logarithm of its count", correlation(along, &counts).abs(), 0.8);
        class.claim("One coordinate separates names from other words more than any coordinate did before");
        class.at_least("deviations after less those before", apart - apart_before, 0.5);
        Ok(())
    },
};

/// The names that the stories have.
fn names() -> Vec<&'static str> {
    let rules =
        GRAMMAR.lines().skip_while(|line| !line.starts_with("boy ")).take_while(|line| !line.starts_with("name:"));
    rules.flat_map(str::split_whitespace).filter(|word| word.starts_with(char::is_uppercase)).collect()
}

/// How far the mean of those that are chosen is from that of the others, in standard deviations of all.
fn apart(values: &[f64], chosen: &[bool]) -> f64 {
    let mean = |of: Option<bool>| {
        let some = values.iter().zip(chosen).filter(|(_, chosen)| of.is_none_or(|of| of == **chosen)).map(|(v, _)| *v);
        let (sum, n) = some.fold((0.0, 0.0), |(sum, n), v| (sum + v, n + 1.0));
        sum / n
    };
    let all = mean(None);
    let deviation = (values.iter().map(|v| (v - all).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
    (mean(Some(true)) - mean(Some(false))).abs() / deviation
}

/// How far two lists go together: 1 or −1 if they lie on a line.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |of: &mut dyn Iterator<Item = f64>| of.sum::<f64>() / a.len() as f64;
    let (x, y) = (mean(&mut a.iter().copied()), mean(&mut b.iter().copied()));
    let product = |of: fn(f64, f64) -> f64| mean(&mut a.iter().zip(b).map(|(a, b)| of(a - x, b - y)));
    product(|a, b| a * b) / (product(|a, _| a * a) * product(|_, b| b * b)).sqrt()
}

/// The rows of a token table less their mean.
struct Table {
    rows: Vec<Vec<f64>>,
}

impl Table {
    fn new(values: &[f32], width: usize) -> Table {
        let n = (values.len() / width) as f64;
        let mean = |j: usize| values.iter().skip(j).step_by(width).map(|v| f64::from(*v)).sum::<f64>() / n;
        let means: Vec<f64> = (0..width).map(mean).collect();
        let row = |row: &[f32]| row.iter().zip(&means).map(|(v, mean)| f64::from(*v) - mean).collect();
        Table { rows: values.chunks_exact(width).map(row).collect() }
    }

    fn column(&self, j: usize) -> Vec<f64> {
        self.rows.iter().map(|row| row[j]).collect()
    }

    /// The share of the variance along the first direction, and every row's coordinate there: by power iteration.
    fn first(&self) -> (f64, Vec<f64>) {
        let width = self.rows[0].len();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut direction = vec![1.0; width];
        for _ in 0..500 {
            let mut next = vec![0.0; width];
            for row in &self.rows {
                let along = dot(row, &direction);
                next.iter_mut().zip(row).for_each(|(next, v)| *next += along * v);
            }
            let length = dot(&next, &next).sqrt();
            direction = next.into_iter().map(|v| v / length).collect();
        }
        let along: Vec<f64> = self.rows.iter().map(|row| dot(row, &direction)).collect();
        (dot(&along, &along) / self.rows.iter().map(|row| dot(row, row)).sum::<f64>(), along)
    }
}
