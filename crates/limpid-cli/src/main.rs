//! The binary `limpid`.

use std::process::ExitCode;

fn main() -> ExitCode {
    limpid_cli::run(std::env::args_os().collect()).into()
}
