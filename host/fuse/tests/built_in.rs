//! The four policies, as they are built, fuse.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests are tests"
)]

mod common;

use common::{POLICIES, adapter, built_policy, contract};
use pointsman_fuse::{Options, fuse, inspect};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use wasmparser::{ExternalKind, Parser, Payload};

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_four_policies_fuse_to_the_same_bytes_every_time() {
    let adapter = adapter(&contract());
    for name in POLICIES {
        let policy = built_policy(name);
        let first = fuse(&policy, &adapter, &Options::default()).unwrap();
        let second = fuse(&policy, &adapter, &Options::default()).unwrap();
        assert_eq!(first.bytes, second.bytes, "{name}");
        assert_eq!(first.sizes.fused, first.bytes.len());
        assert_eq!(first.sizes.memories, 2, "{name}: one memory a side");
    }
}

#[test]
fn a_fused_module_says_what_it_was_made_from() {
    let (policy, adapter) = (built_policy("least-tokens"), adapter(&contract()));
    let options = Options {
        fuel: 123_456,
        ..Options::default()
    };
    let fused = fuse(&policy, &adapter, &options).unwrap();
    let found = inspect(&fused.bytes).unwrap();
    assert_eq!(found, fused.made);
    assert_eq!(found.component, sha256(&policy));
    assert_eq!(found.adapter, sha256(&adapter));
    assert_eq!(found.fuel, 123_456);
    assert!(found.stubs.is_empty());
}

#[test]
fn a_file_that_was_not_fused_is_not_inspected() {
    for bytes in [
        &built_policy("least-tokens"),
        &adapter(&contract()),
        &b"text".to_vec(),
    ] {
        let error = inspect(bytes).unwrap_err().to_string();
        assert!(error.contains("pointsman envoy build"), "{error}");
    }
}

#[test]
fn a_proxy_sees_one_memory_and_only_its_own_entries() {
    let fused = fuse(
        &built_policy("least-tokens"),
        &adapter(&contract()),
        &Options::default(),
    );
    let fused = fused.unwrap();
    let mut memories = Vec::new();
    let mut others = BTreeSet::new();
    for payload in Parser::new(0).parse_all(&fused.bytes) {
        if let Payload::ExportSection(exports) = payload.unwrap() {
            for export in exports {
                let export = export.unwrap();
                match export.kind {
                    ExternalKind::Memory => memories.push((export.name.to_owned(), export.index)),
                    _ => {
                        others.insert(export.name.to_owned());
                    }
                }
            }
        }
    }
    assert_eq!(memories, [("memory".to_owned(), 0)]);
    let foreign = |name: &&String| {
        !name.starts_with("proxy_") && !["malloc", "_initialize"].contains(&name.as_str())
    };
    assert_eq!(others.iter().find(foreign), None);
}
