//! Tables of tensors, as text: what of ours a tensor of another program holds, in every block. The same rows serve
//! reading and writing.
//!
//! A row is `ours=theirs`, or `ours=theirs:how` where it does not lie as ours does. Names without an ending are pairs
//! of `.weight` and `.bias`. `{}` is the block's number; ours is then below `blocks.{}`. `(q|k|v)` stands for three
//! names.

use super::links::{Link, TensorLayout, Within, extent};
use limpid_core::config::{Config, Parallel, RotaryPairs};
use limpid_core::model::{FeatureOrder, Model, Module};

/// A row of a table.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) ours: &'static str,
    pub(crate) theirs: &'static str,
    pub(crate) held: Held,
}

/// The rows of a table.
pub(crate) fn rows(table: &'static str) -> impl Iterator<Item = Row> {
    table.split_whitespace().map(|row| {
        let (ours, theirs) = row.split_once('=').expect("rows have two names");
        let (theirs, how) = theirs.split_once(':').unwrap_or((theirs, ""));
        let held = match how {
            "" if theirs.contains('(') => Held::Thirds,
            "" => Held::Same,
            "transposed" => Held::Transposed,
            "fused" => Held::Fused,
            "grouped" => Held::Grouped,
            "first-half" => Held::Half(0),
            "second-half" => Held::Half(1),
            "turned" => Held::Turned,
            "from-2" => Held::From(2),
            "one-norm" => Held::If(|c| c.parallel != Parallel::TwoNorms),
            "two-norms" => Held::If(|c| c.parallel == Parallel::TwoNorms),
            "tied-head" => Held::If(|c| c.tied_head),
            other => unreachable!("`{other}` is no way in which tensors lie"),
        };
        Row { ours, theirs, held }
    })
}

/// How a tensor of theirs holds a parameter of ours.
#[derive(Clone, Copy)]
pub(crate) enum Held {
    /// As ours.
    Same,
    /// (in, out).
    Transposed,
    /// The queries, the keys or the values alone: three tensors, which the name spells `(q|k|v)`.
    Thirds,
    /// Queries, keys and values one after another.
    Fused,
    /// For each key head its queries, its key and its value.
    Grouped,
    /// One half of the rows, the first or the second, beside another parameter's.
    Half(usize),
    /// The gain of a norm of queries and keys, in their order.
    Turned,
    /// After some rows that no position reads.
    From(usize),
    /// As ours, in models of which this is true.
    If(fn(&Config) -> bool),
}

/// Which tensor of theirs is which of ours, by several tables.
pub(crate) fn links<'t>(
    tables: impl Iterator<Item = &'t &'static str>,
    pairs: RotaryPairs,
    model: &Model,
) -> Vec<Link> {
    let mut list = vec![];
    for row in tables.flat_map(|table| rows(table)) {
        for (third, theirs) in spelt(row.theirs).iter().enumerate() {
            let in_blocks = theirs.contains("{}");
            for block in 0..if in_blocks { model.config.n_layer } else { 1 } {
                let module = if in_blocks { Module::block(block) } else { Module::MODEL };
                let (name, param) = (theirs.replace("{}", &block.to_string()), module.named(row.ours));
                let kinds: &[&str] = if is_whole(row.ours) { &[""] } else { &[".weight", ".bias"] };
                for kind in kinds {
                    let place = RowPlace { pairs, model, block, third, name: format!("{name}{kind}") };
                    list.extend(row.links(&place, &format!("{param}{kind}")));
                }
            }
        }
    }
    list
}

/// The names that a name with `(q|k|v)` in it stands for; another stands for itself.
fn spelt(name: &str) -> Vec<String> {
    let parts = name.split_once('(').and_then(|(before, rest)| Some((before, rest.split_once(')')?)));
    let Some((before, (all, after))) = parts else { return vec![name.into()] };
    all.split('|').map(|part| format!("{before}{part}{after}")).collect()
}

/// Whether a name is a tensor's, not that of a weight and a bias.
fn is_whole(name: &str) -> bool {
    name.ends_with(".weight") || name.ends_with(".bias")
}

/// Where a row is read: which block's, under which name, which of three tensors.
struct RowPlace<'a> {
    pairs: RotaryPairs,
    model: &'a Model,
    block: usize,
    third: usize,
    name: String,
}

impl Row {
    /// Whether a tensor is the row's, or one of its two.
    pub(crate) fn has(&self, name: &str) -> bool {
        let pair = |kind: &str| !is_whole(self.theirs) && name.strip_suffix(kind) == Some(self.theirs);
        name == self.theirs || pair(".weight") || pair(".bias")
    }

    /// Its links with a parameter, if the model has that.
    fn links(&self, place: &RowPlace, param: &str) -> Vec<Link> {
        let Some(param) = place.model.param(param) else { return vec![] };
        let (rows, padded) = (extent(param).0, param.is_vocabulary());
        let config = &place.model.config;
        let heads = config.heads();
        let (d, group, columns) = (heads.d_head, heads.group(), heads.cols());
        let turn = match place.pairs {
            RotaryPairs::Neighbours => TensorLayout::Same,
            pairs => {
                let turned = config.rotary_dim_of(place.block);
                TensorLayout::Features(FeatureOrder { pairs, d_head: d, turned, features: columns })
            }
        };
        let link = |rows, turn, within| {
            let (name, param) = (place.name.clone(), param.name.clone());
            Link { name, param, rows, turn, within, padded }
        };
        let whole = |turn, within| vec![link(0..rows, turn, within)];
        let part = |i: usize, within| link(heads.parts()[i].clone(), [turn, turn, TensorLayout::Same][i], within);
        let within = |from, run, stride, of| Some(Within { from, run, stride, of });
        match self.held {
            Held::If(holds) if !holds(config) => vec![],
            Held::Same | Held::If(_) => whole(TensorLayout::Same, None),
            Held::Transposed => whole(TensorLayout::Transposed, None),
            Held::Turned => whole(turn, None),
            Held::Thirds => vec![part(place.third, None)],
            Held::From(from) => whole(TensorLayout::Same, within(from, rows, rows, from + rows)),
            Held::Half(i) => whole(TensorLayout::Same, within(i * rows, rows, rows, 2 * rows)),
            Held::Fused => {
                let parts = heads.parts().into_iter().enumerate();
                parts.map(|(i, rows)| part(i, within(rows.start, rows.len(), rows.len(), columns))).collect()
            }
            Held::Grouped => {
                let places = [(0, group * d), (group * d, d), ((group + 1) * d, d)].into_iter().enumerate();
                places.map(|(i, (from, run))| part(i, within(from, run, (group + 2) * d, columns))).collect()
            }
        }
    }
}
