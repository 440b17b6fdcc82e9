//! Compiled policies on disk, so that a restart, or a second host of the same user on this node, does
//! not compile again.
//!
//! An entry is named after the SHA-256 of the `.wasm` and the engine's compatibility hash, so that one
//! for another policy, wasmtime or setting is simply not found. It is looked for in the shared folder
//! first, then in the private one; what is found in the shared one is copied. Compiled code is code:
//! an entry is executed only if it belongs to this user, nobody else may write it, and it is whole.
//! Anything else is replaced by what compiling gives. Entries are written beside their place and
//! renamed, so that a process that dies in between leaves no half of one; what it does leave is removed
//! when a cache is opened there again. A lock on the file tells the writers that live: numbers of
//! processes mean nothing where containers share a folder.

use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;
use wasmtime::Engine;
use wasmtime::component::Component;

/// Compiled code beyond this is not read, in bytes. A Python policy comes to about 35 MB.
const MAX_CODE: u64 = 256 << 20;
/// An entry begins with the SHA-256 of the rest.
const DIGEST: usize = 32;

/// Why there is no cache.
#[derive(Debug, Error)]
pub enum CacheError {
    /// the folder cannot be made or written
    #[error("the code cache {0} cannot be used: {1}")]
    Folder(PathBuf, io::Error),
    /// somebody else could put code there
    #[error(
        "the code cache {0} is not private: wanted mode 0700 and this user as its owner, found mode {1:o} and owner {2}"
    )]
    NotPrivate(PathBuf, u32, u32),
}

/// See the module.
#[derive(Debug)]
pub struct CodeCache {
    private: PathBuf,
    shared: Option<PathBuf>,
    user: u32,
    /// tells the temporary files of this process apart
    writes: AtomicU64,
}

impl CodeCache {
    /// Uses `private`, which is made if it is missing, and `shared` where it can.
    ///
    /// # Errors
    /// If the private folder cannot be made, or is not private.
    pub fn open(private: &Path, shared: Option<&Path>) -> Result<CodeCache, CacheError> {
        let folder = |e| CacheError::Folder(private.to_owned(), e);
        (DirBuilder::new().recursive(true).mode(0o700))
            .create(private)
            .map_err(folder)?;
        let mut cache = CodeCache {
            private: private.to_owned(),
            shared: shared.map(Path::to_owned),
            user: 0,
            writes: AtomicU64::new(0),
        };
        // Whoever owns what we write is us.
        let probe = cache.temporary(private);
        let owner = new_file(&probe).and_then(|file| Ok(file.metadata()?.uid()));
        let _ = fs::remove_file(&probe);
        cache.user = owner.map_err(folder)?;
        let found = fs::metadata(private).map_err(folder)?;
        if found.mode() & 0o077 != 0 || found.uid() != cache.user {
            let mode = found.mode() & 0o7777;
            return Err(CacheError::NotPrivate(
                private.to_owned(),
                mode,
                found.uid(),
            ));
        }
        for folder in std::iter::once(&cache.private).chain(&cache.shared) {
            cache.sweep(folder);
        }
        Ok(cache)
    }

    /// Removes what writers left that died: temporary files of this user that nobody holds.
    fn sweep(&self, folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let temporary = name.to_str().is_some_and(is_temporary);
            let ours = || {
                entry
                    .metadata()
                    .is_ok_and(|m| m.is_file() && m.uid() == self.user)
            };
            let abandoned = || File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
            if temporary && ours() && abandoned() {
                tracing::info!(path = %entry.path().display(), "removed what a dead writer left");
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The compiled form of `wasm`, if it is there and whole; nothing is compiled.
    pub fn cached(&self, engine: &Engine, wasm: &[u8]) -> Option<Component> {
        self.find(engine, &entry_name(engine, wasm))
    }

    /// The compiled form of `wasm`: from the cache, or compiled and put there. The second part says
    /// whether it had to be compiled.
    ///
    /// # Errors
    /// If it does not compile. A cache that cannot be read or written only costs time.
    pub fn component(&self, engine: &Engine, wasm: &[u8]) -> wasmtime::Result<(Component, bool)> {
        let name = entry_name(engine, wasm);
        if let Some(component) = self.find(engine, &name) {
            return Ok((component, false));
        }
        let component = Component::from_binary(engine, wasm)?;
        let code = component.serialize()?;
        for folder in std::iter::once(&self.private).chain(&self.shared) {
            if let Err(error) = self.write(folder, &name, &code) {
                tracing::warn!(folder = %folder.display(), %error, "compiled code is not kept");
            }
        }
        Ok((component, true))
    }

    fn find(&self, engine: &Engine, name: &str) -> Option<Component> {
        if let Some(shared) = &self.shared
            && let Some(code) = self.read(&shared.join(name))
            && let Some(component) = revive(engine, &code)
        {
            let copy = self.private.join(name);
            if self.read(&copy).is_none()
                && let Err(error) = self.write(&self.private, name, &code)
            {
                tracing::warn!(%error, "no private copy of compiled code");
            }
            return Some(component);
        }
        revive(engine, &self.read(&self.private.join(name))?)
    }

    /// The code of an entry; none: it is missing, foreign, or damaged.
    fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let mut file = File::open(path).ok()?;
        // Of the open file, so that it cannot be changed for another one in between.
        let found = file.metadata().ok()?;
        let ours = found.is_file() && found.uid() == self.user && found.mode() & 0o022 == 0;
        if !ours || found.len() > MAX_CODE {
            tracing::warn!(path = %path.display(), "compiled code of somebody else is not executed");
            return None;
        }
        let mut digest = [0; DIGEST];
        file.read_exact(&mut digest).ok()?;
        let mut code = Vec::new();
        file.read_to_end(&mut code).ok()?;
        if Sha256::digest(&code).as_slice() == digest {
            Some(code)
        } else {
            tracing::warn!(path = %path.display(), "damaged compiled code is replaced");
            None
        }
    }

    fn write(&self, folder: &Path, name: &str, code: &[u8]) -> io::Result<()> {
        let temporary = self.temporary(folder);
        let written = new_file(&temporary).and_then(|mut file| {
            // Held until it is closed. Where there are no locks, nobody can take it from us either.
            let _ = file.try_lock();
            file.write_all(&Sha256::digest(code))?;
            file.write_all(code)?;
            file.sync_all()?;
            fs::rename(&temporary, folder.join(name))
        });
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn temporary(&self, folder: &Path) -> PathBuf {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        folder.join(format!(".{}-{number}", std::process::id()))
    }
}

/// See [`CodeCache::temporary`].
fn is_temporary(name: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (name.strip_prefix('.').and_then(|name| name.split_once('-')))
        .is_some_and(|(process, write)| number(process) && number(write))
}

fn new_file(path: &Path) -> io::Result<File> {
    // A file that a process of our number left when it died.
    let _ = fs::remove_file(path);
    (OpenOptions::new().write(true).create_new(true).mode(0o600)).open(path)
}

fn entry_name(engine: &Engine, wasm: &[u8]) -> String {
    let mut compatibility = DefaultHasher::new();
    engine
        .precompile_compatibility_hash()
        .hash(&mut compatibility);
    let digest: String = (Sha256::digest(wasm).iter())
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{digest}-{:016x}.cwasm", compatibility.finish())
}

fn revive(engine: &Engine, code: &[u8]) -> Option<Component> {
    // SAFETY: `read` gave these bytes, so this user's host wrote them as wasmtime serialized them (the
    // digest is right, nobody else may write the file), and wasmtime itself checks that its version
    // and settings are those of this engine.
    #[expect(unsafe_code, reason = "compiled code is trusted: see above")]
    let component = unsafe { Component::deserialize(engine, code) };
    match component {
        Ok(component) => Some(component),
        Err(error) => {
            tracing::warn!("compiled code of another version is replaced: {error:#}");
            None
        }
    }
}
