//! Compiled code is kept, shared, and never trusted beyond what can be checked.

#![allow(clippy::unwrap_used, reason = "a test's helper fails the test")]

use pointsman_runtime::CodeCache;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use wasmtime::{Config, Engine};

/// The smallest component there is.
const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

fn engine() -> Engine {
    let mut config = Config::new();
    config.concurrency_support(false).epoch_interruption(true);
    Engine::new(&config).unwrap()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

fn compiled(cache: &CodeCache, engine: &Engine) -> bool {
    cache.component(engine, EMPTY).unwrap().1
}

fn private(home: &TempDir) -> CodeCache {
    CodeCache::open(&home.path().join("private"), None).unwrap()
}

#[test]
fn a_policy_is_compiled_once_and_its_entry_is_for_this_user_alone() {
    let (home, engine) = (TempDir::new().unwrap(), engine());
    let cache = private(&home);
    assert!(compiled(&cache, &engine));
    assert!(!compiled(&cache, &engine));
    assert!(!compiled(&private(&home), &engine), "another process");
    let [entry] = entries(&home.path().join("private")).try_into().unwrap();
    assert_eq!(fs::metadata(&entry).unwrap().mode() & 0o777, 0o600);
    let folder = fs::metadata(home.path().join("private")).unwrap();
    assert_eq!(folder.mode() & 0o777, 0o700);
}

#[test]
fn a_damaged_or_cut_entry_is_replaced() {
    let (home, engine) = (TempDir::new().unwrap(), engine());
    let cache = private(&home);
    assert!(compiled(&cache, &engine));
    let [entry] = entries(&home.path().join("private")).try_into().unwrap();
    let whole = fs::read(&entry).unwrap();
    let mut flipped = whole.clone();
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    for damaged in [&flipped[..], &whole[..whole.len() / 2], &whole[..10], b""] {
        fs::write(&entry, damaged).unwrap();
        assert!(compiled(&cache, &engine), "{} bytes", damaged.len());
        assert!(!compiled(&cache, &engine), "it is whole again");
    }
}

#[test]
fn an_entry_that_others_may_write_is_not_executed() {
    let (home, engine) = (TempDir::new().unwrap(), engine());
    let cache = private(&home);
    assert!(compiled(&cache, &engine));
    let [entry] = entries(&home.path().join("private")).try_into().unwrap();
    fs::set_permissions(&entry, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(compiled(&cache, &engine));
    assert_eq!(
        fs::metadata(&entry).unwrap().mode() & 0o777,
        0o600,
        "replaced"
    );
}

#[test]
fn an_entry_of_another_engine_is_not_found() {
    let home = TempDir::new().unwrap();
    let cache = private(&home);
    assert!(compiled(&cache, &engine()));
    let mut other = Config::new();
    other.concurrency_support(false).epoch_interruption(false);
    assert!(compiled(&cache, &Engine::new(&other).unwrap()));
    assert_eq!(entries(&home.path().join("private")).len(), 2);
}

#[test]
fn a_folder_that_others_may_enter_is_refused() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("open");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let refusal = CodeCache::open(&folder, None).unwrap_err().to_string();
    assert!(
        refusal.contains("wanted mode 0700") && refusal.contains("755"),
        "{refusal}"
    );
}

#[test]
fn what_the_shared_folder_has_is_copied_and_what_it_lacks_is_given() {
    let (home, engine) = (TempDir::new().unwrap(), engine());
    let shared = home.path().join("shared");
    fs::create_dir(&shared).unwrap();
    let user = |name: &str| CodeCache::open(&home.path().join(name), Some(&shared)).unwrap();
    assert!(compiled(&user("one"), &engine));
    assert_eq!(entries(&shared).len(), 1);
    assert!(!compiled(&user("two"), &engine), "from the shared folder");
    fs::remove_dir_all(&shared).unwrap();
    assert!(!compiled(&user("two"), &engine), "from its private copy");
}

#[test]
fn what_dead_writers_left_is_removed_and_what_living_ones_write_is_not() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("private");
    drop(private(&home));
    let [dead, living, other] = [".4711-0", ".4711-1", ".keep"].map(|name| folder.join(name));
    let held = [&dead, &living, &other].map(|path| fs::File::create(path).unwrap());
    held[1].lock().unwrap();
    drop(private(&home));
    assert_eq!(entries(&folder), [living.clone(), other.clone()]);
    drop(held);
    drop(private(&home));
    assert_eq!(entries(&folder), [other]);
}

#[test]
fn what_a_dead_process_left_half_written_is_never_taken_for_an_entry() {
    let (home, engine) = (TempDir::new().unwrap(), engine());
    let cache = private(&home);
    fs::write(home.path().join("private/.4711-0"), b"half").unwrap();
    assert!(compiled(&cache, &engine));
    assert!(!compiled(&private(&home), &engine));
}
