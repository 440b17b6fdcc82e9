//! Where windows are kept: a folder each, of which all is there or nothing, and not too many.
//!
//! A window is written into `NAME.partial`, which becomes `NAME` when its index is in it: whoever looks
//! for `NAME` after a crash finds a whole one or none. What crashed hosts have left goes when its turn
//! comes among the old ones.

use std::fs::{self, File as Opened, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::index::{File, Index};
use super::merge::{Found, Merge};

/// The index of a window.
pub(super) const INDEX: &str = "index.json";
/// All traces of a window in one.
pub(super) const MERGED: &str = "merged.trace.json";
/// Not whole yet.
const PARTIAL: &str = ".partial";
/// Of the merged trace, bytes: what a viewer still opens.
const MERGED_BYTES: u64 = 512 << 20;
/// Of all files of a window, bytes, without the merged one.
pub(super) const WINDOW_BYTES: u64 = 2 << 30;

/// The operator's folder.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
    /// So many windows are kept.
    keep: usize,
}

/// A window that is being written.
#[derive(Debug, Clone)]
pub(super) struct Partial {
    path: PathBuf,
}

impl Folder {
    pub(super) fn new(path: PathBuf, keep: usize) -> Self {
        Self { path, keep }
    }

    /// The names of the windows that are there, the oldest first.
    pub(super) fn windows(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .all()
            .into_iter()
            .filter(|name| is_whole(name))
            .collect();
        names.sort();
        names
    }

    /// The highest number that was given.
    pub(super) fn last_number(&self) -> u64 {
        let number = |name: &String| {
            name.trim_end_matches(PARTIAL)
                .rsplit_once('-')?
                .1
                .parse()
                .ok()
        };
        self.all().iter().filter_map(number).max().unwrap_or(0)
    }

    /// A file of a window that is whole; none: there is no such window or file.
    pub(super) fn file(&self, window: &str, file: &str) -> Option<PathBuf> {
        let plain = |name: &str| !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
        let place = self.path.join(window).join(file);
        // No link is followed: the files of a window are its own.
        let regular = || fs::symlink_metadata(&place).is_ok_and(|about| about.is_file());
        (is_window(window) && is_whole(window) && plain(file) && regular()).then_some(place)
    }

    /// Begins one.
    pub(super) fn begin(&self, window: &str) -> io::Result<Partial> {
        fs::create_dir_all(&self.path).map_err(|error| at(&self.path, &error))?;
        let path = self.path.join(format!("{window}{PARTIAL}"));
        fs::create_dir(&path).map_err(|error| at(&path, &error))?;
        Ok(Partial { path })
    }

    /// Writes the index and lets the window be seen, then removes those that are too old.
    pub(super) fn end(&self, partial: &Partial, index: &Index) -> io::Result<PathBuf> {
        let mut text = serde_json::to_vec_pretty(index)?;
        text.push(b'\n');
        let file = partial.path.join(INDEX);
        let write = || {
            let mut out = create(&file)?;
            out.write_all(&text)?;
            out.sync_all()
        };
        write().map_err(|error| at(&file, &error))?;
        let whole = self.path.join(&index.window);
        fs::rename(&partial.path, &whole).map_err(|error| at(&whole, &error))?;
        // The name counts when it is on disk.
        Opened::open(&self.path).and_then(|folder| folder.sync_all())?;
        Ok(whole)
    }

    /// Leaves the last so many, and what `in_use` says.
    pub(super) fn clean(&self, in_use: impl Fn(&str) -> bool) -> io::Result<()> {
        let mut names = self.all();
        names.retain(|name| !in_use(name.trim_end_matches(PARTIAL)));
        names.sort();
        let old = names.len().saturating_sub(self.keep);
        for name in names.iter().take(old) {
            let path = self.path.join(name);
            fs::remove_dir_all(&path).map_err(|error| at(&path, &error))?;
        }
        Ok(())
    }

    /// Folders that are windows or were to be, and nothing else that lies there.
    fn all(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_window(name))
            .collect()
    }
}

impl Partial {
    /// Writes a trace. One that is none is kept apart, under another name.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> (io::Result<File>, Result<(), String>) {
        let (name, events, valid) = match Found::of(bytes) {
            Ok(found) => (format!("{name}.trace.json"), found.events, Ok(())),
            Err(why) => (format!("{name}.invalid"), 0, Err(why)),
        };
        let path = self.path.join(&name);
        let written = create(&path)
            .and_then(|mut file| file.write_all(bytes))
            .map_err(|error| {
                // Half a file is none.
                let _ = fs::remove_file(&path);
                at(&path, &error)
            });
        let file = written.map(|()| File {
            file: name,
            bytes: bytes.len() as u64,
            sha256: hexadecimal(&Sha256::digest(bytes)),
            events,
        });
        (file, valid)
    }

    /// Merges all valid traces of the window, given with their ranks' names. Those that do not fit any
    /// more are left out, and named.
    pub(super) fn merge(&self, traces: &[(String, File)]) -> io::Result<(File, Vec<String>)> {
        let path = self.path.join(MERGED);
        let written = self.write_merged(&path, traces);
        written.map_err(|error| {
            let _ = fs::remove_file(&path);
            at(&path, &error)
        })
    }

    fn write_merged(
        &self,
        path: &Path,
        traces: &[(String, File)],
    ) -> io::Result<(File, Vec<String>)> {
        let out = Digesting {
            out: BufWriter::new(create(path)?),
            digest: Sha256::new(),
            bytes: 0,
        };
        let mut merge = Merge::new(out)?;
        let (mut bytes, mut events, mut left_out) = (0, 0, Vec::new());
        for (rank, file) in traces {
            if bytes + file.bytes > MERGED_BYTES {
                left_out.push(rank.clone());
                continue;
            }
            let trace = fs::read(self.path.join(&file.file))?;
            let found = Found::of(&trace).map_err(io::Error::other)?;
            merge.add(rank, &found, &trace)?;
            bytes += file.bytes;
            events += found.events;
        }
        let (out, _) = merge.end()?;
        let file = File {
            file: MERGED.to_owned(),
            bytes: out.bytes,
            sha256: hexadecimal(&out.digest.finalize()),
            events,
        };
        Ok((file, left_out))
    }
}

/// Counts and digests what passes.
struct Digesting<W> {
    out: W,
    digest: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.digest.update(bytes.get(..written).unwrap_or_default());
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A name of a file for an endpoint, which may have any visible ASCII in its own; different ones for
/// different endpoints.
pub(super) fn file_name(endpoint: &str) -> String {
    let mut name = String::new();
    for (c, n) in endpoint.chars().zip(0..) {
        if c.is_ascii_alphanumeric() || c == '-' || c == '_' || (c == '.' && n > 0) {
            name.push(c);
        } else {
            name.push_str(&format!("%{:02X}", u32::from(c)));
        }
    }
    name
}

/// As `index::name` makes them: nothing else in the folder is ours to remove.
fn is_window(name: &str) -> bool {
    let name = name.strip_suffix(PARTIAL).unwrap_or(name);
    let Some((time, number)) = name.split_once('-') else {
        return false;
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    time.len() == 16
        && time
            .strip_suffix('Z')
            .and_then(|time| time.split_once('T'))
            .is_some_and(|(date, time)| date.len() == 8 && digits(date) && digits(time))
        && digits(number)
}

fn is_whole(name: &str) -> bool {
    !name.ends_with(PARTIAL)
}

/// What engines did is nobody else's business.
fn create(path: &Path) -> io::Result<Opened> {
    (OpenOptions::new().write(true).create_new(true).mode(0o600)).open(path)
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("cannot write {}: {error}", path.display()),
    )
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_differ_and_only_windows_are_windows() {
        assert_eq!(file_name("prefill-0.a_b"), "prefill-0.a_b");
        assert_eq!(file_name(".."), "%2E.");
        assert_eq!(file_name("a:b%"), "a%3Ab%25");
        for name in ["20261130T004512Z-0001", "20261130T004512Z-12345.partial"] {
            assert!(is_window(name), "{name}");
        }
        for name in [
            "",
            "..",
            "a",
            "20261130T004512Z",
            "20261130T004512Z-",
            "20261130T004512Z-1/..",
            "2026T1Z-1",
        ] {
            assert!(!is_window(name), "{name}");
        }
    }

    #[test]
    fn old_windows_and_what_crashed_hosts_left_go_and_nothing_else_does() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path().to_owned(), 2);
        for name in [
            "20260101T000000Z-0001",
            "20260102T000000Z-0002.partial",
            "20260103T000000Z-0003",
            "20260104T000000Z-0004",
            "20260105T000000Z-0005.partial",
            "mine",
        ] {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        fs::write(place.path().join("20250101T000000Z-0001"), "a file").unwrap();
        assert_eq!(folder.last_number(), 5);
        folder
            .clean(|name| name == "20260105T000000Z-0005")
            .unwrap();
        let mut left: Vec<_> = fs::read_dir(place.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "20250101T000000Z-0001",
                "20260103T000000Z-0003",
                "20260104T000000Z-0004",
                "20260105T000000Z-0005.partial",
                "mine",
            ]
        );
        assert_eq!(
            folder.windows(),
            ["20260103T000000Z-0003", "20260104T000000Z-0004"]
        );
        fs::write(place.path().join("20260104T000000Z-0004/index.json"), "{}").unwrap();
        assert!(folder.file("20260104T000000Z-0004", "index.json").is_some());
        for (window, file) in [
            ("20260104T000000Z-0004", "../20260103T000000Z-0003"),
            ("20260104T000000Z-0004", ".."),
            ("..", "x"),
            ("mine", "x"),
            ("20260105T000000Z-0005.partial", "x"),
            ("20260104T000000Z-0004", "none"),
            ("20260104T000000Z-0004", ""),
        ] {
            assert_eq!(folder.file(window, file), None, "{window} {file}");
        }
        std::os::unix::fs::symlink(
            "/etc/hostname",
            place.path().join("20260104T000000Z-0004/link"),
        )
        .unwrap();
        assert_eq!(folder.file("20260104T000000Z-0004", "link"), None);
    }
}
