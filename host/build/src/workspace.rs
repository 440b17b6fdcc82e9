//! What cargo knows of a crate.

use crate::{Error, toolchain};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A workspace, or a crate that is one of its own.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target_dir: PathBuf,
    /// every package that lies on this machine, also outside of the workspace
    pub(crate) local: Vec<Package>,
}

#[derive(Clone, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest: PathBuf,
}

impl Package {
    /// The component's file name without `.wasm`.
    pub(crate) fn component_name(&self) -> &str {
        self.name.strip_prefix("pointsman-").unwrap_or(&self.name)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.manifest.parent().unwrap_or(&self.manifest)
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    manifest_path: PathBuf,
    source: Option<String>,
}

/// Reads the crate in a folder, or of a manifest, and its workspace.
pub(crate) fn read(path: &Path) -> Result<(Workspace, Package), Error> {
    let no_crate = |message: &str| Error::NoCrate {
        path: path.to_owned(),
        message: message.trim().to_owned(),
    };
    let manifest = if path.is_dir() {
        path.join("Cargo.toml")
    } else {
        path.to_owned()
    };
    let manifest = manifest
        .canonicalize()
        .map_err(|_| no_crate(&format!("there is no {}", manifest.display())))?;
    let cargo = toolchain::cargo();
    let output = Command::new(&cargo)
        .args(["metadata", "--format-version", "1", "--filter-platform"])
        .arg(toolchain::TARGET)
        .arg("--manifest-path")
        .arg(&manifest)
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io(format!("{} metadata", cargo.to_string_lossy())))?;
    if !output.status.success() {
        return Err(no_crate(&String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| no_crate(&format!("cargo metadata is not as expected: {error}")))?;
    let local: Vec<Package> = (metadata.packages.into_iter())
        .filter(|package| package.source.is_none())
        .map(|package| Package {
            name: package.name,
            manifest: package.manifest_path,
        })
        .collect();
    let package = (local.iter())
        .find(|package| package.manifest == manifest)
        .cloned()
        .ok_or_else(|| no_crate("it is a workspace and no package: give the folder of one"))?;
    let workspace = Workspace {
        root: metadata.workspace_root,
        target_dir: metadata.target_directory,
        local,
    };
    Ok((workspace, package))
}
