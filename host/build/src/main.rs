//! `pointsman-build [--out DIR] [--core] CRATE…`: policy crates to components, adapters to core modules.

use clap::Parser;
use pointsman_build::{Error, Options, build, build_modules};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Builds policy crates to WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "pointsman-build", version)]
struct Args {
    /// The crates: folders, or their Cargo.toml
    #[arg(required = true, value_name = "CRATE")]
    crates: Vec<PathBuf>,
    /// Where NAME.wasm goes, NAME being the package's name without `pointsman-` [default: the crate's folder]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Leave core modules, as an adapter is one, in place of components
    #[arg(long)]
    core: bool,
    /// Cargo's target folder [default: `wasm` inside that of the crate's workspace]
    #[arg(long, value_name = "DIR")]
    target_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let options = Options {
        out: args.out,
        target_dir: args.target_dir,
    };
    let done = if args.core {
        core_modules(&args.crates, &options)
    } else {
        components(&args.crates, &options)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn components(crates: &[PathBuf], options: &Options) -> Result<(), Error> {
    for built in build(crates, options, &mut |line| eprintln!("{line}"))? {
        let component = &built.component;
        print_file(&built.path, component.bytes().len(), built.changed);
        println!("  imports {}", component.imports().join(" "));
        println!("  exports {}", component.exports().join(" "));
    }
    Ok(())
}

fn core_modules(crates: &[PathBuf], options: &Options) -> Result<(), Error> {
    for built in build_modules(crates, options, &mut |line| eprintln!("{line}"))? {
        print_file(&built.path, built.bytes, built.changed);
    }
    Ok(())
}

fn print_file(path: &Path, bytes: usize, changed: bool) {
    let unchanged = if changed { "" } else { ", unchanged" };
    println!("{}  {bytes} bytes{unchanged}", path.display());
}
