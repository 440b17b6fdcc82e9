//! What cannot be fused is refused, by name.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests are tests"
)]

mod common;

use common::{adapter, component, contract, contract_but, policy};
use pointsman_fuse::{Error, Options, fuse};
use wit_component::StringEncoding;
use wit_parser::LiftLowerAbi;

/// The error of fusing these.
fn refusal(policy: &[u8], adapter: &[u8]) -> Error {
    match fuse(policy, adapter, &Options::default()) {
        Ok(_) => panic!("it was fused"),
        Err(error) => error,
    }
}

/// It names all of `parts`.
#[track_caller]
fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "wanted {part:?} in: {text}");
    }
}

#[test]
fn the_contract_itself_is_fused() {
    let fused = fuse(
        &policy(&contract()),
        &adapter(&contract()),
        &Options::default(),
    );
    assert!(fused.is_ok(), "{}", fused.unwrap_err());
}

#[test]
fn a_reordered_record_is_refused_with_function_and_field() {
    let from = "requests: u32,\n    /// live bindings of sessions\n    sessions: u32,";
    let to = "sessions: u32,\n    requests: u32,";
    let other = contract_but(from, to);
    let error = refusal(&policy(&other), &adapter(&contract()));
    assert!(matches!(error, Error::Differs { .. }), "{error}");
    says(
        &error,
        &[
            "pointsman:policy/fleet@0.1.0#load-of",
            "field 1",
            "`sessions`",
            "`requests`",
        ],
    );
}

#[test]
fn a_reordered_enum_is_refused() {
    let other = contract_but(
        "decode,\n  }\n\n  /// The identities",
        "encode,\n  }\n\n  /// The identities",
    );
    let error = refusal(&policy(&other), &adapter(&contract()));
    says(
        &error,
        &[
            "policy@0.1.0#route",
            "field `phase`, case 3",
            "`encode`",
            "`decode`",
        ],
    );
}

#[test]
fn a_field_of_another_type_is_refused() {
    let other = contract_but(
        "prompt-tokens: u32,\n    /// Of those",
        "prompt-tokens: u64,\n    /// Of those",
    );
    let error = refusal(&policy(&other), &adapter(&contract()));
    says(
        &error,
        &[
            "#route",
            "parameter `r`, field `prompt-tokens`",
            "has u64",
            "adapter u32",
        ],
    );
}

#[test]
fn a_record_with_one_field_more_is_refused() {
    let other = contract_but(
        "context-tokens: u64,\n  }",
        "context-tokens: u64,\n    more: u64,\n  }",
    );
    let error = refusal(&policy(&other), &adapter(&contract()));
    says(
        &error,
        &["#load-of", "number of fields", "has 5", "adapter 4"],
    );
}

#[test]
fn an_import_that_the_adapter_has_not_is_refused() {
    let more = "interface state {\n  /// More.\n  clear: func();";
    let other = contract_but("interface state {", more);
    let error = refusal(&policy(&other), &adapter(&contract()));
    assert!(matches!(error, Error::NoImport(_)), "{error}");
    says(&error, &["pointsman:policy/state@0.1.0#clear"]);
}

#[test]
fn an_export_that_the_policy_has_not_is_refused() {
    let more = "observe: func(e: event);\n  /// More.\n  rest: func();";
    let other = contract_but("observe: func(e: event);", more);
    let error = refusal(&policy(&contract()), &adapter(&other));
    assert!(matches!(error, Error::NoExport(_)), "{error}");
    says(&error, &["pointsman:policy/policy@0.1.0#rest"]);
}

#[test]
fn an_adapter_of_another_version_is_refused() {
    let other = contract_but("pointsman:policy@0.1.0", "pointsman:policy@0.2.0");
    let error = refusal(&policy(&contract()), &adapter(&other));
    says(&error, &["@0.1.0"]);
}

#[test]
fn an_asynchronous_function_is_refused() {
    let other = contract_but("route: func(", "route: async func(");
    let policy = component(&other, StringEncoding::UTF8, LiftLowerAbi::AsyncCallback);
    let error = refusal(&policy, &adapter(&contract()));
    assert!(matches!(error, Error::Async(_)), "{error}");
    says(&error, &["pointsman:policy/policy@0.1.0#route"]);
}

#[test]
fn a_resource_of_the_policy_is_refused() {
    let other = contract_but(
        "interface policy {",
        "interface policy {\n  /// A handle.\n  resource cursor { next: func() -> u32; }",
    );
    let error = refusal(&policy(&other), &adapter(&contract()));
    assert!(matches!(error, Error::Resource(_)), "{error}");
    says(&error, &["pointsman:policy/policy@0.1.0#cursor"]);
}

#[test]
fn strings_in_utf_16_are_refused() {
    let policy = component(&contract(), StringEncoding::UTF16, LiftLowerAbi::Sync);
    let error = refusal(&policy, &adapter(&contract()));
    assert!(matches!(error, Error::Encoding { .. }), "{error}");
    says(&error, &["pointsman:policy/", "UTF-16"]);
}

/// The contract, and a policy that imports from WASI too.
fn with_wasi() -> String {
    let wasi = "package wasi:random@0.2.0 {\n  interface random {\n    resource source { take: func() -> u8; }\n    get-random-u64: func() -> u64;\n    open: func() -> source;\n  }\n}\n";
    let text = contract_but(
        "world router {",
        "world router {\n  import wasi:random/random@0.2.0;",
    );
    format!("{text}\n{wasi}")
}

#[test]
fn wasi_is_refused_unless_it_is_stubbed() {
    let policy = policy(&with_wasi());
    let adapter = adapter(&contract());
    let error = refusal(&policy, &adapter);
    assert!(matches!(error, Error::Wasi(_)), "{error}");
    says(
        &error,
        &["wasi:random/random@0.2.0#get-random-u64", "--stub-wasi"],
    );

    let stubbing = Options {
        stub_wasi: true,
        ..Options::default()
    };
    let fused = fuse(&policy, &adapter, &stubbing).unwrap();
    let stubs = fused.made.stubs.join(" ");
    assert!(
        stubs.contains("wasi:random/random@0.2.0#get-random-u64"),
        "{stubs}"
    );
    assert!(stubs.contains("#open"), "{stubs}");
}

#[test]
fn stubbing_wasi_lets_nothing_else_through() {
    let other = contract_but(
        "interface state {",
        "interface state {\n  /// More.\n  clear: func();",
    );
    let stubbing = Options {
        stub_wasi: true,
        ..Options::default()
    };
    let error = fuse(&policy(&other), &adapter(&contract()), &stubbing).unwrap_err();
    assert!(matches!(error, Error::NoImport(_)), "{error}");
}

#[test]
fn what_is_no_component_is_refused() {
    let adapter = adapter(&contract());
    for bytes in [&b""[..], b"text", &adapter] {
        let error = refusal(bytes, &adapter);
        assert!(matches!(error, Error::NoComponent(_)), "{error}");
    }
}

#[test]
fn what_is_no_adapter_is_refused() {
    let policy = policy(&contract());
    // The smallest core module: it has no types with it.
    let empty: &[u8] = b"\0asm\x01\0\0\0";
    for bytes in [&b""[..], b"text", &policy, empty] {
        let error = refusal(&policy, bytes);
        assert!(
            matches!(error, Error::NoAdapter(_) | Error::NoImport(_)),
            "{error}"
        );
    }
}
