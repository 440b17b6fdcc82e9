//! Crates in, components or core modules out.

use crate::file::write;
use crate::toolchain::Toolchain;
use crate::workspace::{self, Package, Workspace};
use crate::{Component, Error, Say};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// For the fastest decisions: a policy is small, and what it costs to compile is paid once.
const PROFILE: [&str; 7] = [
    "profile.release.opt-level=3",
    "profile.release.lto=true",
    "profile.release.codegen-units=1",
    "profile.release.panic=\"abort\"",
    "profile.release.debug=false",
    "profile.release.strip=true",
    "profile.release.incremental=false",
];

/// Where things go.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// where the components go; none: the folder of each crate
    pub out: Option<PathBuf>,
    /// cargo's target folder; none: `wasm` inside that of the crate's workspace
    pub target_dir: Option<PathBuf>,
}

/// A component on disk.
#[derive(Clone, Debug)]
pub struct Built {
    /// the package's name without `pointsman-`
    pub name: String,
    /// NAME.wasm
    pub path: PathBuf,
    /// what is in it
    pub component: Component,
    /// false: the file had these bytes already
    pub changed: bool,
}

/// A core module on disk.
#[derive(Clone, Debug)]
pub struct BuiltModule {
    /// NAME.wasm
    pub path: PathBuf,
    /// of the file
    pub bytes: usize,
    /// false: the file had these bytes already
    pub changed: bool,
}

/// Builds each crate (a folder, or its `Cargo.toml`) to the component NAME.wasm. In the order given.
///
/// # Errors
/// The first thing that does not work; components that were complete by then are written.
pub fn build(crates: &[PathBuf], options: &Options, say: Say<'_>) -> Result<Vec<Built>, Error> {
    let mut built = Vec::new();
    for (package, module) in modules(crates, options, say)? {
        let name = package.component_name().to_owned();
        let component = Component::encode(&name, &module)?;
        let path = options.path(&package);
        let changed = write(&path, component.bytes())?;
        built.push(Built {
            name,
            path,
            component,
            changed,
        });
    }
    Ok(built)
}

/// Builds each crate to the core module NAME.wasm: an adapter, which is no component.
///
/// # Errors
/// The first thing that does not work; modules that were complete by then are written.
pub fn build_modules(
    crates: &[PathBuf],
    options: &Options,
    say: Say<'_>,
) -> Result<Vec<BuiltModule>, Error> {
    let mut built = Vec::new();
    for (package, module) in modules(crates, options, say)? {
        let path = options.path(&package);
        let changed = write(&path, &module)?;
        built.push(BuiltModule {
            path,
            bytes: module.len(),
            changed,
        });
    }
    Ok(built)
}

impl Options {
    fn path(&self, package: &Package) -> PathBuf {
        let folder = self.out.as_deref().unwrap_or(package.folder());
        folder.join(format!("{}.wasm", package.component_name()))
    }
}

/// The core module of each crate, in the order given.
fn modules(
    crates: &[PathBuf],
    options: &Options,
    say: Say<'_>,
) -> Result<Vec<(Package, Vec<u8>)>, Error> {
    let mut groups: BTreeMap<PathBuf, (Workspace, Vec<Package>)> = BTreeMap::new();
    let mut order = Vec::new();
    for path in crates {
        let (workspace, package) = workspace::read(path)?;
        order.push(package.manifest.clone());
        let key = workspace.root.clone();
        let group = groups.entry(key).or_insert_with(|| (workspace, Vec::new()));
        group.1.push(package);
    }
    let mut built = HashMap::new();
    let mut toolchain = None;
    for (workspace, packages) in groups.into_values() {
        let target_dir =
            (options.target_dir.clone()).unwrap_or_else(|| workspace.target_dir.join("wasm"));
        let toolchain = match &toolchain {
            Some(found) => found,
            None => toolchain.insert(Toolchain::find(&target_dir, say)?),
        };
        let mut files = cargo(toolchain, &workspace, &packages, &target_dir)?;
        for package in packages {
            let file = (files.remove(&package.manifest))
                .ok_or_else(|| Error::NoModule(package.name.clone()))?;
            let module =
                fs::read(&file).map_err(Error::io(format!("cannot read {}", file.display())))?;
            built.insert(package.manifest.clone(), (package, module));
        }
    }
    Ok((order.iter())
        .filter_map(|manifest| built.remove(manifest))
        .collect())
}

/// One run of cargo; the modules by manifest. Cargo's own messages go to standard error.
fn cargo(
    toolchain: &Toolchain,
    workspace: &Workspace,
    packages: &[Package],
    target_dir: &Path,
) -> Result<HashMap<PathBuf, PathBuf>, Error> {
    let mut command = toolchain.build();
    command
        .arg("--manifest-path")
        .arg(workspace.root.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir)
        .arg("--message-format=json-render-diagnostics")
        .args(PROFILE.iter().flat_map(|setting| ["--config", setting]))
        .args(packages.iter().flat_map(|package| ["-p", &package.name]))
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            without_paths(toolchain, workspace),
        )
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = run(&mut command)?;
    if !output.status.success() {
        let names: Vec<&str> = packages.iter().map(|p| p.name.as_str()).collect();
        return Err(Error::Cargo {
            packages: names.join(", "),
            status: (output.status.code()).map_or("a signal".to_owned(), |code| code.to_string()),
        });
    }
    let lines = output.stdout.split(|&byte| byte == b'\n');
    Ok(lines.filter_map(module_in).collect())
}

fn run(command: &mut Command) -> Result<std::process::Output, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    command
        .output()
        .map_err(Error::io(format!("cannot run {program} build")))
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<MessageTarget>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct MessageTarget {
    kind: Vec<String>,
}

/// The module that a line of cargo's speaks of, with its crate's manifest.
fn module_in(line: &[u8]) -> Option<(PathBuf, PathBuf)> {
    let message: Message = serde_json::from_slice(line).ok()?;
    let cdylib = message.target?.kind.iter().any(|kind| kind == "cdylib");
    if message.reason != "compiler-artifact" || !cdylib {
        return None;
    }
    let is_wasm = |file: &PathBuf| file.extension().is_some_and(|end| end == "wasm");
    let module = message.filenames.into_iter().find(is_wasm)?;
    Some((message.manifest_path?, module))
}

/// Compiler flags that replace every folder of this machine. The last one that matches counts, so
/// the wide ones come first.
fn without_paths(toolchain: &Toolchain, workspace: &Workspace) -> OsString {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let mut remaps: Vec<(PathBuf, String)> = Vec::new();
    remaps.extend(home.map(|path| (path, "/cargo".to_owned())));
    remaps.extend((toolchain.remap.iter()).map(|(path, to)| (path.clone(), (*to).to_owned())));
    remaps.push((workspace.root.clone(), "/workspace".to_owned()));
    remaps.extend((workspace.local.iter()).map(|package| {
        let to = format!("/{}", package.name);
        (package.folder().to_owned(), to)
    }));
    let flags = remaps.into_iter().map(|(from, to)| {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(from);
        flag.push("=");
        flag.push(to);
        flag
    });
    let flags: Vec<OsString> = flags.collect();
    flags.join(std::ffi::OsStr::new("\x1f"))
}
