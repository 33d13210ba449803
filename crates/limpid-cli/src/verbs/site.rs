//! `site`: the page that trains and opens models in the browser, as one file.

use crate::outputs::Force;
use crate::show;
use anyhow::{Context, Result, bail};
use limpid_base::files::{self, OutputFile};
use limpid_serve::live;
use serde_json::json;
use std::io::Write as _;
use std::path::PathBuf;

/// Write a page that trains a GPT in the browser and then shows its inside: one file that any web server can host.
///
/// The page holds limpid itself and no model, needs no server behind it, and opens from the disk too. What is trained
/// or opened there stays in the reader's browser.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  limpid site index.html            for a web server, or to send to a class
  index.html#preset=nano&steps=300  settings in the link: preset, steps, seed")]
pub struct Args {
    /// The file to write, such as index.html
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    _force: Force,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub fn run(Args { file, json, .. }: Args) -> Result<()> {
    let Some(html) = live::site()? else {
        bail!(
            "this limpid was built without the module that runs in pages: a release has it, and `cargo xtask web` \
             makes it before `cargo build`"
        );
    };
    files::replace(&file, |part| OutputFile::create(part)?.write_all(html.as_bytes()))
        .with_context(|| file.display().to_string())?;
    if json {
        return show::json(&json!({ "file": file, "bytes": html.len() }));
    }
    show::say(format_args!("saved {}: {}, open it in a browser", file.display(), show::bytes(html.len() as u64)));
    Ok(())
}
