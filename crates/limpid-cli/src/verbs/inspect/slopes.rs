//! `inspect --backward --answer`: how one token's logit depends on what the model computes on the way.

use super::changes::metric_of;
use super::{Args, grid, piece, short};
use crate::look::position;
use crate::options::Usage;
use crate::{models, show};
use anyhow::{Result, bail};
use limpid::checkpoint::Checkpoint;
use limpid::draw::table::TableOptions;
use limpid::draw::view::{self, wrap};
use limpid::sweep::MetricSlopes;
use limpid::trace::labels::Labels;
use serde_json::json;

pub fn print(args: &Args, checkpoint: Checkpoint, sequences: &[Vec<u32>]) -> Result<()> {
    let [ids] = sequences else {
        bail!(Usage("--answer is about one sequence: give one --prompt".into()));
    };
    let lm = models::sharing(checkpoint, &args.machine)?;
    let tokenizer = lm.tokenizer().ok();
    let (metric, what) = metric_of(args, (lm.config(), tokenizer))?;
    let at = position(args.position, ids, (lm.config().mask, tokenizer))?;
    let width = args.width.map_or_else(show::table_width, usize::from);
    if !args.tensor.is_empty() {
        let name = |asked: &String| asked.strip_suffix(".grad").unwrap_or(asked).to_string();
        let names: Vec<String> = args.tensor.iter().map(name).collect();
        let slopes = lm.metric_gradients(ids, (metric, at as i64), &names)?;
        if args.json {
            let tensor = |one: &limpid::trace::NamedTensor| {
                json!({ "name": one.name, "axes": one.axes,
                "shape": one.shape, "values": one.values })
            };
            return show::json(&slopes.iter().map(tensor).collect::<Vec<_>>());
        }
        let options = TableOptions { width, decimals: args.decimals.into(), ..TableOptions::default() };
        let texts: Vec<String> = slopes.iter().map(|one| view::text(one, &Labels::default(), None, &options)).collect();
        return show::out(&texts.join("\n"));
    }
    let MetricSlopes { stream, heads, attribution } = lm.metric_slopes(ids, (metric, at as i64))?;
    if args.json {
        let all =
            json!({ "metric": what, "position": at, "stream": stream, "heads": heads, "attribution": attribution });
        return show::json(&all);
    }
    let mut text =
        wrap(&format!("How the {what} at position {at} depends on the residual stream, |gradient|:"), 0, width);
    let stages: Vec<String> = (0..stream.len()).map(super::changes::stage).collect();
    let headers: Vec<&str> = ["token"].into_iter().chain(stages.iter().map(String::as_str)).collect();
    let row =
        |t: usize| [piece(tokenizer, ids[t])].into_iter().chain(stream.iter().map(|stage| short(stage[t]))).collect();
    text += &grid(String::new(), &headers, (0..ids.len()).map(row)).whole(width);
    let columns: Vec<String> = (0..lm.config().n_head).map(|head| format!("head {head}")).collect();
    let headers: Vec<&str> = ["layer"].into_iter().chain(columns.iter().map(String::as_str)).collect();
    for (said, numbers) in [
        ("How it depends on each head's output, |gradient|:", &heads),
        ("Gradient times activation: what it loses without the head, to first order:", &attribution),
    ] {
        let row = |(layer, row): (usize, &Vec<f64>)| {
            [layer.to_string()].into_iter().chain(row.iter().map(|v| short(*v))).collect()
        };
        text += &format!("\n{}", wrap(said, 0, width));
        text += &grid(String::new(), &headers, numbers.iter().enumerate().map(row)).whole(width);
    }
    show::out(&text)
}
