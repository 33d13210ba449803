//! `bench serve`: a server with many clients. The clients are `limpid_serve::load`.

use crate::models;
use crate::options::{self, MachineOptions, Usage};
use crate::show;
use anyhow::{Result, bail};
use limpid::Machine;
use limpid::engine::EngineLimits;
use limpid::ops::element::Element;
use limpid_serve::load::{self, Arrivals, Load, LoadReport};
use limpid_serve::{PageOptions, ServeOptions, ServedAs, ServedModel, Server};
use std::path::PathBuf;

/// Measure a server with many clients.
#[derive(clap::Args, Debug)]
pub struct LoadArgs {
    /// The model to serve; with --against, only its tokenizer is used
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Number of clients, each of which sends its next request when the last is answered; several numbers are measured one after another
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: Vec<u16>,
    /// Instead of --clients, send this many requests per second at random times (a Poisson process)
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Requests each client sends in each of three rounds (the median is reported); with --rate, of all clients together
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    requests: u16,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 128)]
    prompt_tokens: usize,
    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_tokens: usize,
    /// Tokens at the beginning that are the same in all prompts
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: usize,
    /// Measure another server, at an address like http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// The API key to send to that server
    #[arg(long, value_name = "KEY", hide_env_values = true, requires = "against")]
    api_key: Option<String>,
    /// Type of the KV cache: f32 or bf16
    #[arg(long, value_name = "P", default_value = "f32", value_parser = options::stored)]
    kv_cache_dtype: Element,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "it is no number".to_string())?;
    if rate > 0.0 && rate.is_finite() { Ok(rate) } else { Err("it must be above 0".into()) }
}

/// Rounds of each load, on the server and on the engine in turn: other programs disturb some.
const ROUNDS: usize = 3;
/// How much faster one round may be than another on a machine that does nothing else.
const STEADY: f64 = 2.0;

/// The round of median rate, with the times of all, and how many times faster the fastest was than the slowest.
fn median(mut rounds: Vec<LoadReport>) -> (LoadReport, f64) {
    rounds.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    let spread = rounds[rounds.len() - 1].rate() / rounds[0].rate();
    let mut median = rounds.swap_remove(rounds.len() / 2);
    for other in rounds {
        median.first.extend(other.first);
        median.between.extend(other.between);
    }
    (median, spread)
}

/// Measures it, beside the same requests on the engine alone.
pub fn run(args: &LoadArgs) -> Result<()> {
    models::shares(&args.machine)?;
    let checkpoint = models::adapted(&args.model, None, !args.machine.no_verify)?;
    models::serves(&checkpoint, &args.machine)?;
    let machine = Machine { cache: args.kv_cache_dtype, ..args.machine.machine() };
    let how = ServedAs { id: "model".into(), machine, template: None };
    let model = ServedModel::new(checkpoint, &how)?;
    let (tokenizer, context) = (model.lm.tokenizer()?.clone(), model.lm.config().context_length);
    if args.prompt_tokens == 0 || args.prompt_tokens + args.max_tokens > context + 1 {
        let (prompt, answer) = (args.prompt_tokens, args.max_tokens);
        bail!(Usage(format!("--prompt-tokens {prompt} and --max-tokens {answer} must be 1 to {context} together")));
    }
    let loads: Vec<(String, Arrivals, usize)> = match args.rate {
        Some(rate) => vec![(format!("{rate} a second"), Arrivals::Poisson(rate), args.requests.into())],
        None => {
            let one =
                |n: &u16| (n.to_string(), Arrivals::Closed((*n).into()), usize::from(*n) * usize::from(args.requests));
            args.clients.iter().map(one).collect()
        }
    };
    let most = usize::from(args.clients.iter().copied().max().unwrap_or(1)).max(16);
    let engine = EngineLimits::of(model.lm.config(), most, context);
    let lm = model.lm.clone();
    let server = match &args.against {
        Some(_) => None,
        None => {
            let options = ServeOptions { port: 0, engine, page: PageOptions::Off, ..ServeOptions::default() };
            Some(Server::start(model, options, None, Box::new(|event| show::say(format_args!("{event:?}"))))?)
        }
    };
    let url = args.against.clone().or(server.as_ref().map(|server| server.url())).expect("one of them is there");
    let mut alone = if server.is_some() { Some(lm.engine(&engine)?) } else { None };
    // no prompt comes twice: an answer from the cache of prompts would be measured
    let all = 1 + ROUNDS * loads.iter().map(|(_, _, count)| count).sum::<usize>();
    let mut prompts = Load::prompts(&tokenizer, (all, args.prompt_tokens, args.shared_prefix))?.into_iter();
    let warm = Load { prompts: prompts.by_ref().take(1).collect(), max_tokens: 1, arrivals: Arrivals::Closed(1) };
    load::server(&url, args.api_key.as_deref(), &warm)?;
    alone.as_mut().map(|alone| load::engine_alone(alone, &warm)).transpose()?;
    let (mut rows, mut spread) = (vec![], 1.0_f64);
    for (what, arrivals, count) in loads {
        let (mut served, mut engine) = (vec![], vec![]);
        for _ in 0..ROUNDS {
            let prompts = prompts.by_ref().take(count).collect();
            let load = Load { prompts, max_tokens: args.max_tokens, arrivals };
            served.push(load::server(&url, args.api_key.as_deref(), &load)?);
            engine.extend(alone.as_mut().map(|alone| load::engine_alone(alone, &load)).transpose()?);
        }
        let (served, of_server) = median(served);
        spread = spread.max(of_server);
        let engine = (!engine.is_empty()).then(|| {
            let (engine, of_engine) = median(engine);
            spread = spread.max(of_engine);
            engine
        });
        rows.push((what, served, engine));
    }
    if spread > STEADY {
        show::say(format_args!(
            "note: the rounds of a load differ by up to {spread:.1} times: this machine is busy with something else"
        ));
    }
    if let Some(server) = server {
        server.stopper().stop();
        server.wait()?;
    }
    let percentiles = |times: &[f64]| [50.0, 99.0].map(|percent| LoadReport::percentile(times, percent));
    if args.json {
        let measured = |report: &LoadReport| {
            let [first_p50, first_p99] = percentiles(&report.first);
            let [between_p50, between_p99] = percentiles(&report.between);
            serde_json::json!({
                "tok_s": report.rate(), "tokens": report.tokens, "first_p50_s": first_p50, "first_p99_s": first_p99,
                "between_p50_s": between_p50, "between_p99_s": between_p99,
            })
        };
        let rows: Vec<_> = rows
            .iter()
            .map(|(what, served, alone)| {
                serde_json::json!({ "clients": what, "served": measured(served), "engine_alone": alone.as_ref().map(measured) })
            })
            .collect();
        return show::json(&serde_json::json!({ "loads": rows, "spread": spread }));
    }
    let headers = ["clients", "tok/s", "engine alone", "share", "first token p50", "p99", "next token p50", "p99"];
    let ms = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
    let line = |(what, served, alone): &(String, LoadReport, Option<LoadReport>)| {
        let alone = alone.as_ref().map(LoadReport::rate);
        let times = percentiles(&served.first).into_iter().chain(percentiles(&served.between)).map(ms);
        let rates = [
            what.clone(),
            format!("{:.1}", served.rate()),
            alone.map_or_else(String::new, |alone| format!("{alone:.1}")),
            alone.map_or_else(String::new, |alone| format!("{:.0} %", 100.0 * served.rate() / alone)),
        ];
        rates.into_iter().chain(times).collect()
    };
    show::out(&show::columns(&headers, &rows.iter().map(line).collect::<Vec<_>>()))
}
