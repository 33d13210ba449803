//! `limpid completions SHELL` and `limpid man [DIR]`: what shells and `man` know of limpid, made from its own flags.

use crate::show;
use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use limpid_base::files;
use std::path::PathBuf;

/// Print shell completions: where they go is said in `limpid completions --help`
#[derive(clap::Args, Debug)]
#[command(after_help = "bash: limpid completions bash > ~/.local/share/bash-completion/completions/limpid\nzsh:  \
                        limpid completions zsh > DIR/_limpid (DIR: a folder in $fpath)\nfish: limpid completions \
                        fish > ~/.config/fish/completions/limpid.fish")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Print the manual page, or write one for every verb into a folder
#[derive(clap::Args, Debug)]
pub struct Man {
    /// Folder for limpid.1, limpid-train.1 and so on; `man -l limpid.1` shows a page
    folder: Option<PathBuf>,
}

/// Writes the completions to stdout.
pub fn completions(args: Completions, mut command: Command) -> Result<()> {
    let mut text = vec![];
    clap_complete::generate(args.shell, &mut command, "limpid", &mut text);
    show::out(&String::from_utf8(text)?)
}

/// A command whose flags all have their help: `-h` leaves some out, a page does not.
fn whole(command: Command) -> Command {
    command.mut_args(|arg| arg.hide_short_help(false)).mut_subcommands(whole)
}

/// Writes the manual.
pub fn man(args: Man, command: Command) -> Result<()> {
    let command = whole(command);
    if let Some(folder) = args.folder {
        files::create_folder(&folder).with_context(|| folder.display().to_string())?;
        return clap_mangen::generate_to(command, &folder).with_context(|| folder.display().to_string());
    }
    let mut text = vec![];
    clap_mangen::Man::new(command).render(&mut text)?;
    show::out(&String::from_utf8(text)?)
}
