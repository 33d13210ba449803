//! The glass box from the command line: in a browser (`inspect --open`), or as a file (`--html`).

use crate::options::{self, MachineOptions, Usage};
use crate::{models, show, signals};
use anyhow::{Context, Result, bail};
use limpid::Interventions;
use limpid::checkpoint::Checkpoint;
use limpid_glass::{GlassError, Subject};
use limpid_serve::saved::{self, SavedPage};
use limpid_serve::{ServeOptions, ServedAs, ServedModel, Server, live};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How the inside of a model is shown elsewhere than in the terminal.
#[derive(clap::Args, Debug)]
pub struct GlassOptions {
    /// Open the model in a browser, until Ctrl-C
    #[arg(long, conflicts_with_all = ["preset", "data", "initial", "mask_file", "segments"])]
    pub open: bool,
    /// Save the page as one file that works offline, to send to somebody; with a model of at most 64 MB inside, which
    /// runs in the browser, if this limpid was built with the module for that, else as with --still
    #[arg(
        long, value_name = "FILE", conflicts_with_all = ["preset", "data", "initial", "mask_file", "segments", "open"]
    )]
    pub html: Option<PathBuf>,
    /// Save the answers about this one prompt alone, without weights
    #[arg(long, requires = "html")]
    still: bool,
    /// Maximum size of such a file of answers [default: 2 MB; 10 MB if the run alone takes more than 2]
    #[arg(long, value_name = "BYTES", value_parser = options::bytes, requires = "html")]
    max_bytes: Option<u64>,
    /// The port of --open; 0 picks a free one
    #[arg(long, value_name = "PORT", default_value_t = 0, requires = "open")]
    port: u16,
    /// Another model to compare with in --open
    #[arg(long, value_name = "DIR", requires = "open")]
    against: Vec<PathBuf>,
    /// Memory for traces under --open
    #[arg(long, value_name = "BYTES", default_value = "512MiB", value_parser = options::bytes, requires = "open")]
    inspect_memory: u64,
    /// Folder with the page's files, read anew for every request: for working on the page
    #[arg(long, value_name = "DIR", requires = "open", hide_short_help = true)]
    ui_dir: Option<PathBuf>,
}

/// What a page begins with.
pub struct PageRun<'a> {
    pub prompt: Option<&'a str>,
    pub ids: Option<&'a [u32]>,
    pub last: bool,
    /// What changes the run.
    pub steps: Option<&'a Interventions>,
}

/// A model to look into.
fn served(checkpoint: Checkpoint, id: String, machine: &MachineOptions) -> Result<ServedModel> {
    models::shares(machine)?;
    models::suits(&checkpoint, machine)?;
    Ok(ServedModel::new(checkpoint, &ServedAs { id, machine: machine.machine(), template: None })?)
}

/// Models that are looked into beside one that is served, which is called `own`.
pub fn others(paths: &[PathBuf], own: &str, machine: &MachineOptions) -> Result<Vec<Subject>> {
    let mut names = vec![own.to_string()];
    for path in paths {
        let name = models::name(path);
        if names.contains(&name) {
            bail!(Usage(format!(
                "--against {}: another model is called {name}, and models are told apart by the names of their \
                 folders: rename one",
                path.display()
            )));
        }
        names.push(name);
    }
    let other = |path: &PathBuf| -> Result<Subject> {
        let model = models::checkpoint(path, !machine.no_verify)
            .and_then(|checkpoint| served(checkpoint, models::name(path), machine));
        Ok(Subject::from(&model.with_context(|| path.display().to_string())?))
    };
    paths.iter().map(other).collect()
}

/// Serves the page on this machine, says where, and asks the system to open it. Returns when it is told to stop.
pub fn open(
    glass: &GlassOptions,
    (dir, checkpoint): (&Path, Checkpoint),
    run: &PageRun,
    machine: &MachineOptions,
) -> Result<()> {
    if checkpoint.tokenizer.is_none() {
        let dir = dir.display();
        bail!("{dir} has no tokenizer, and in the page a prompt is a text: put its tokenizer.json beside it");
    }
    let model = served(checkpoint, models::name(dir), machine)?;
    let options = ServeOptions {
        port: glass.port,
        inspect: Some(usize::try_from(glass.inspect_memory).unwrap_or(usize::MAX)),
        allow_interventions: true,
        against: others(&glass.against, &models::name(dir), machine)?,
        look_only: !model.continues(),
        page: match &glass.ui_dir {
            Some(folder) => limpid_serve::PageOptions::Folder(folder.clone()),
            None => limpid_serve::PageOptions::Own,
        },
        ..ServeOptions::default()
    };
    let server = Server::start(model, options, None, Box::new(|_| {}))?;
    let stopper = server.stopper();
    signals::on_signal(move |_| stopper.stop())?;
    let url = format!("{}/#{}", server.url(), address(run));
    show::say(format_args!("look inside at {url}\nCtrl-C ends it"));
    browse(&url);
    Ok(server.wait()?)
}

/// Where the page begins.
fn address(run: &PageRun) -> String {
    let steps = run.steps.map(Interventions::to_string);
    let mut words = vec![("v", "map")];
    words.extend(steps.as_deref().map(|steps| ("i", steps)));
    words.extend(run.last.then_some(("last", "1")));
    // who has no text to ask about is shown around
    words.push(run.prompt.map_or(("tour", "1"), |prompt| ("p", prompt)));
    live::address(&words)
}

/// Asks the system for its browser. Where it has none, the address that was printed is enough.
fn browse(url: &str) {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else if cfg!(windows) {
        "explorer"
    } else {
        "xdg-open"
    };
    let quiet = Stdio::null;
    let _ = Command::new(program).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn(); // there may be none
}

/// Bytes that a page may have where nothing is said, and where its run alone has more.
const SMALL: u64 = 2_000_000;
const LARGE: u64 = 10_000_000;

/// Writes the page with the model inside of it, which begins at an address; says whether there can be one.
pub fn put_live(
    path: &Path,
    (dir, checkpoint): (&Path, &Checkpoint),
    start: &str,
    machine: &MachineOptions,
) -> Result<bool> {
    let Some(html) = live::page(&models::name(dir), (checkpoint, &machine.machine()), start)? else { return Ok(false) };
    put(path, &html, ", the model inside; it runs in the browser, offline").map(|()| true)
}

/// Writes a page.
fn put(path: &Path, html: &str, what: &str) -> Result<()> {
    limpid_base::files::replace(path, |part| limpid_base::files::OutputFile::create(part)?.write_all(html.as_bytes()))
        .with_context(|| format!("--html {}", path.display()))?;
    show::say(format_args!("saved {}: {}{what}", path.display(), show::bytes(html.len() as u64)));
    Ok(())
}

/// Writes the page with one run as a file.
pub fn html(
    glass: &GlassOptions,
    path: &Path,
    (dir, checkpoint): (&Path, Checkpoint),
    run: &PageRun,
    machine: &MachineOptions,
) -> Result<()> {
    // a run of ids has no text for the page to begin with
    let still = glass.still || glass.max_bytes.is_some() || run.ids.is_some();
    if !still && put_live(path, (dir, &checkpoint), &address(run), machine)? {
        return Ok(());
    }
    let mut body = match (run.prompt, run.ids) {
        (Some(text), _) => json!({ "prompt": text }),
        (None, Some(ids)) => json!({ "tokens": ids }),
        (None, None) => json!({ "prompt": models::example(&checkpoint)? }),
    };
    body["last"] = Value::Bool(run.last);
    if let Some(steps) = run.steps {
        body["interventions"] = json!(steps);
    }
    save((path, glass.max_bytes), (dir, checkpoint), (&body, None), machine)
}

/// Writes the page with a run and a sweep, as the server is asked for them.
pub fn save(
    (path, most): (&Path, Option<u64>),
    (dir, checkpoint): (&Path, Checkpoint),
    (body, sweep): (&Value, Option<&Value>),
    machine: &MachineOptions,
) -> Result<()> {
    let model = served(checkpoint, models::name(dir), machine)?;
    let subject = Subject::from(&model);
    let page = |most: u64| {
        let saved = saved::page(&subject, (body, sweep), usize::try_from(most).unwrap_or(usize::MAX));
        saved.map(|page| (page, most))
    };
    let saved = match (most, page(most.unwrap_or(SMALL))) {
        (None, Err(saved::SaveError::TooLarge { .. })) => page(LARGE),
        (_, done) => done,
    };
    let saved = saved.map_err(|error| match error {
        saved::SaveError::Glass(GlassError::TooLong { tokens, context }) => Usage(format!(
            "the prompt has {tokens} tokens, {} more than the context of {context}: shorten it, or keep its end with \
             --last",
            tokens - context
        ))
        .into(),
        saved::SaveError::Glass(GlassError::Intervention(error)) => anyhow::Error::from(*error).context("--intervene"),
        other => anyhow::Error::from(other),
    });
    let (SavedPage { html, left_out }, most) = saved?;
    let rest = match left_out {
        0 => String::new(),
        n => format!("; {} had no room in {}", show::plural(n, "tensor or picture"), show::bytes(most)),
    };
    put(path, &html, &rest)
}
