//! `pointsman engine try-driver FILE`: what others run beside themselves before they load a driver. Not
//! for people.

use pointsman_engine::Library;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The shared library
    file: PathBuf,
}

/// Said last when it is loaded. The exit status alone proves nothing: a library's own code may end the
/// process with any.
pub const LOADED: &str = "pointsman: the driver is loaded";

/// Loads it, and says so. Why not is said on standard output as well.
pub fn run(args: &Args) -> ExitCode {
    match Library::load(&args.file) {
        Ok(_loaded) => {
            let said = write!(std::io::stdout(), "{LOADED}");
            match said.and_then(|()| std::io::stdout().flush()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            let _ = write!(std::io::stdout(), "{error}");
            ExitCode::FAILURE
        }
    }
}
