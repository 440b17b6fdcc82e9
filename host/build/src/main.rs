//! `pointsman-build [--out DIR] CRATE…`: policy crates to components.

use clap::Parser;
use pointsman_build::{Options, build};
use std::path::PathBuf;
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
    /// Cargo's target folder [default: `wasm` inside that of the crate's workspace]
    #[arg(long, value_name = "DIR")]
    target_dir: Option<PathBuf>,
    /// Also take components that are no policies, for tests of what refuses them
    #[arg(long)]
    any_world: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let options = Options {
        out: args.out,
        target_dir: args.target_dir,
        any_world: args.any_world,
    };
    match build(&args.crates, &options, &mut |line| eprintln!("{line}")) {
        Ok(all) => {
            for built in all {
                let component = &built.component;
                let unchanged = if built.changed { "" } else { ", unchanged" };
                let size = component.bytes().len();
                println!("{}  {size} bytes{unchanged}", built.path.display());
                println!("  imports {}", component.imports().join(" "));
                println!("  exports {}", component.exports().join(" "));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
