//! `serve`: a model over HTTP. The server is `limpid-serve`; here are its flags, and what is said of it.

use crate::models::{self, WeightOptions};
use crate::options::{self, MachineOptions, Usage};
use crate::{glass, live, show, signals};
use anyhow::{Context, Result, bail};
use limpid::Machine;
use limpid::engine::EngineLimits;
use limpid::numeric::element::Element;
use limpid::numeric::simd::Level;
use limpid_serve::{
    ConnectionLimits, PageOptions, ServeError, ServeEvent, ServeOptions, ServedAs, ServedModel, Server,
};
use std::path::PathBuf;
use std::time::Duration;

/// Serve a model over HTTP, in OpenAI's protocol: completions, chats, embeddings and tokens, streamed or whole; and a
/// page at / to try it.
///
/// The same request has the same answer, to the byte, whoever else asks. Ctrl-C or SIGTERM gives running requests
/// --drain seconds to end; a second one ends them at once.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    weights: WeightOptions,
    /// The address to listen on; if other machines can reach it, a key is required
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// The port; 0 picks a free one and prints it
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// A key that requests must send; --api-key-file keeps it out of process lists
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// A file with one key per line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Accept requests without a key from everyone who can reach --host
    #[arg(long)]
    no_auth: bool,
    /// Another host name to accept in the Host header
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allow_host: Vec<String>,
    /// A web origin whose pages may send requests, like https://example.org or app://name; null for pages without an
    /// origin, * for all
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<String>,
    /// Memory of the KV cache: 2G, 800M [default: a quarter of the machine's, at most 2G; on a GPU what all --sequences
    /// can need, at most 1G]
    #[arg(long, value_name = "BYTES", value_parser = options::bytes)]
    kv_memory: Option<u64>,
    /// Type of the KV cache: f32, or bf16 for twice as many positions in the same memory
    #[arg(long, value_name = "P", default_value = "f32", value_parser = options::stored)]
    kv_cache_dtype: Element,
    /// Answers that may wait in the queue (n for each prompt of a request); beyond that, requests get 429 with
    /// Retry-After
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_queue: usize,
    /// Sequences that run at the same time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    sequences: u16,
    /// Longest run of the model, in milliseconds: long prompts are processed in parts, so that others wait no longer
    /// than this
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    turn_ms: u64,
    /// Seconds that running requests get to finish when the server is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain: u64,
    /// A Jinja chat template to use instead of the model's own
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// The model's name in requests and responses [default: the name of its folder or file]
    #[arg(long, value_name = "NAME")]
    served_name: Option<String>,
    /// Memory for inspecting the model: 512M, 2G
    #[arg(
        long, value_name = "BYTES", default_value = "512MiB", value_parser = options::bytes,
        conflicts_with = "no_inspect"
    )]
    inspect_memory: u64,
    /// Turn off inspection of the model
    #[arg(long)]
    no_inspect: bool,
    /// Let requests change what the model computes (`limpid.interventions`), as `limpid inspect --open` does
    #[arg(long, conflicts_with = "no_inspect")]
    allow_interventions: bool,
    /// A second model to inspect beside this one, for comparison
    #[arg(long, value_name = "DIR", conflicts_with = "no_inspect")]
    against: Vec<PathBuf>,
    /// Do not serve the page at /
    #[arg(long, conflicts_with = "ui_dir")]
    no_ui: bool,
    /// Folder with the page's files, read anew for every request: for working on the page
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    ui_dir: Option<PathBuf>,
    /// Let /metrics be read without a key
    #[arg(long)]
    metrics_public: bool,
    /// Reload each new checkpoint of a run that is still training
    #[arg(long)]
    follow: bool,
    /// Largest request body: 1M, 64k
    #[arg(long, value_name = "BYTES", default_value = "1MiB", value_parser = options::bytes, hide_short_help = true)]
    max_body: u64,
    /// Print the server's address as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

/// Bytes of the KV cache where none were asked for, at most.
const KV_MEMORY: u64 = 2_000_000_000;
/// The same where the system does not say how much memory there is.
const UNKNOWN_MEMORY: u64 = 1_000_000_000;
/// Largest file of keys.
const KEYS: u64 = 1 << 20;

pub fn run(mut args: Args) -> Result<()> {
    models::shares(&args.machine)?;
    if args.machine.simd.is_some_and(|level| level != Level::best()) {
        bail!(Usage("limpid serve takes this processor's fastest instruction set: leave --simd out".into()));
    }
    let mut options = options(&args)?;
    let checkpoint = args.weights.open(!args.machine.no_verify)?;
    let path = args.weights.path()?.to_path_buf();
    models::suits(&checkpoint, &args.machine)?;
    let how = ServedAs {
        id: args.served_name.clone().unwrap_or_else(|| models::name(&path)),
        machine: Machine { cache: args.kv_cache_dtype, level: Level::best(), ..args.machine.machine() },
        template: args.chat_template.as_deref().map(options::read_settings).transpose().context("--chat-template")?,
    };
    models::needs_head(&checkpoint)?;
    let whole = |sequences| {
        EngineLimits::new(&checkpoint.config, sequences, usize::MAX).with_cache(args.kv_cache_dtype).cache_bytes
    };
    let one = whole(1);
    if let Some(asked) = args.kv_memory.filter(|asked| *asked < one) {
        let [asked, one] = [asked, one].map(show::bytes);
        bail!(Usage(format!("--kv-memory {asked} is too little: one sequence of this model needs {one}")));
    }
    if args.kv_memory.is_none() && args.machine.device().has_own_memory() {
        // it reserves what a processor would never touch
        options.engine.cache_bytes = whole(options.engine.sequences).min(UNKNOWN_MEMORY);
    }
    let (context, step) = (checkpoint.config.context_length, checkpoint.store().fact("step").map(String::from));
    let (adapters, verified) = (args.weights.adapter.clone(), !args.machine.no_verify);
    let follow = args.follow.then(|| live::followed(path, adapters, verified, how.clone()));
    let model = ServedModel::new(checkpoint, &how)?;
    options.against = glass::others(&args.against, &how.id, &args.machine)?;
    let fingerprint = model.fingerprint.clone();
    let kv_memory = options.engine.cache_bytes;
    let server = Server::start(model, options, follow, Box::new(tell)).map_err(usage)?;
    let stopper = server.stopper();
    let watched = !args.json && show::terminal();
    signals::on_signal(move |urgent| {
        if urgent && watched {
            show::interrupted("the server ends");
        }
        stopper.stop();
    })?;
    let full = server.counts().whole_sequences(context);
    if args.json {
        show::json(&serde_json::json!({
            "url": server.url(), "model": how.id, "fingerprint": fingerprint, "kv_memory": kv_memory,
            "full_sequences": full
        }))?;
    }
    let step = step.map(|step| format!(", step {step}")).unwrap_or_default();
    let url = server.url();
    let memory = show::bytes(kv_memory);
    let full = show::plural(full, "sequence");
    show::say(format_args!(
        "{}{step} is served at {url}; {memory} of KV memory hold {full} of {context} tokens",
        how.id
    ));
    Ok(server.wait()?)
}

/// What the library is asked for.
fn options(args: &Args) -> Result<ServeOptions> {
    let mut keys: Vec<String> = args.api_key.iter().cloned().collect();
    if let Some(path) = &args.api_key_file {
        let text = limpid_base::files::read_text(path, KEYS).with_context(|| path.display().to_string())?;
        let before = keys.len();
        keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from));
        if keys.len() == before {
            bail!("{} has no key: write one a line", path.display());
        }
    }
    let quarter = limpid::memory::total().map_or(UNKNOWN_MEMORY, |total| total / 4);
    Ok(ServeOptions {
        host: args.host.clone(),
        port: args.port,
        keys,
        no_auth: args.no_auth,
        allow_hosts: args.allow_host.clone(),
        cors_origins: args.cors_origin.clone(),
        metrics_public: args.metrics_public,
        engine: EngineLimits {
            sequences: args.sequences.into(),
            cache_bytes: args.kv_memory.unwrap_or(quarter.min(KV_MEMORY)),
            cache: args.kv_cache_dtype,
            ..ServeOptions::default().engine
        },
        max_queue: args.max_queue,
        turn: Duration::from_millis(args.turn_ms),
        drain: Duration::from_secs(args.drain),
        limits: ConnectionLimits {
            body_bytes: usize::try_from(args.max_body).unwrap_or(usize::MAX),
            ..ConnectionLimits::default()
        },
        allow_interventions: args.allow_interventions,
        inspect: (!args.no_inspect).then(|| usize::try_from(args.inspect_memory).unwrap_or(usize::MAX)),
        page: match &args.ui_dir {
            Some(folder) => PageOptions::Folder(folder.clone()),
            None if args.no_ui => PageOptions::Off,
            None => PageOptions::Own,
        },
        ..ServeOptions::default()
    })
}

/// An error that a wrong flag causes is wrong usage, and names the flag.
fn usage(error: ServeError) -> anyhow::Error {
    let flags: Vec<String> = error.settings().iter().map(|name| format!("--{}", name.replace('_', "-"))).collect();
    match error {
        ServeError::Exposed(_)
        | ServeError::Key(_)
        | ServeError::AllowHost(_)
        | ServeError::Origin(_)
        | ServeError::Unnamed => Usage(format!("{error} ({})", flags.join(", "))).into(),
        other => other.into(),
    }
}

fn tell(event: ServeEvent) {
    match event {
        ServeEvent::EngineFailed { what, lost } => {
            show::say(format_args!("the model failed, and {} with it: {what}", show::plural(lost, "sequence")));
        }
        ServeEvent::Stopping { answers, drain } => {
            let answers = show::plural(answers, "answer");
            let seconds = drain.as_secs();
            show::say(format_args!("\nwaiting up to {seconds} s for {answers}; once more to stop at once"));
        }
        ServeEvent::Cut { answers } => {
            show::say(format_args!("stopped: {} cut", show::plural(answers, "answer")));
        }
        ServeEvent::Failed { request, path, what } => {
            show::say(format_args!("{path} failed: request {request}: {what}"))
        }
        ServeEvent::Reloaded { step, fingerprint } => {
            let step = step.map(|step| format!(" of step {step}")).unwrap_or_default();
            show::say(format_args!("now serving the checkpoint{step} ({fingerprint})"));
        }
        ServeEvent::NotReloaded { what } => show::say(format_args!("the new checkpoint is not served: {what}")),
        _ => {}
    }
}
