//! Files that others watch.

use crate::Error;
use std::fs;
use std::io::Write;
use std::path::Path;

/// Writes the file in one step: whoever watches it never sees half of one. A file that has these
/// bytes already is left alone, so that nobody reloads it. Returns whether it was written.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> Result<bool, Error> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    let failed = || Error::io(format!("cannot write {}", path.display()));
    let folder = path.parent().filter(|folder| folder != &Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed())?;
    let mut file = tempfile::Builder::new()
        .prefix(".wasm-")
        .permissions(readable())
        .tempfile_in(folder)
        .map_err(failed())?;
    file.write_all(bytes).map_err(failed())?;
    file.as_file().sync_all().map_err(failed())?;
    (file.persist(path).map(drop)).map_err(|error| failed()(error.error))?;
    Ok(true)
}

/// Temporary files are private by default; a policy is read by the host's own user.
fn readable() -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_the_same_bytes_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/mine.wasm");
        assert!(write(&path, b"one").unwrap());
        assert!(!write(&path, b"one").unwrap());
        assert!(write(&path, b"two").unwrap());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
