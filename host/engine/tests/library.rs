//! Drivers in C: the example's works; each fault of another is an error that says what it is.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pointsman_engine::{Desk, Driver, Failure, Kernel, Knob, Library, Limits, LoadError};
use tempfile::TempDir;

/// Longer than any call takes that comes back.
const PATIENT: Limits = Limits {
    deadline: Duration::from_secs(60),
    queue: 8,
};

struct Built {
    library: PathBuf,
    _folder: TempDir,
}

/// Compiles a driver as its README says.
fn build(source: &str, fault: Option<&str>) -> Built {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("driver.so");
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-D_DEFAULT_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-O1",
    ]);
    cc.arg("-I")
        .arg(here.join("include"))
        .arg("-o")
        .arg(&library);
    cc.args(fault.map(|fault| format!("-DFAULT_{fault}")))
        .arg(here.join(source));
    let output = cc.output().expect("a C compiler, as for every Rust build");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Built {
        library,
        _folder: folder,
    }
}

fn faulty(fault: &str) -> Built {
    build("tests/drivers/faulty.c", Some(fault))
}

fn example(config: &'static str) -> (Desk, Built) {
    let built = build("../../examples/engine-driver-c/driver.c", None);
    let library = Library::load(&built.library).unwrap();
    (Desk::open(PATIENT, move || library.open(config)), built)
}

fn desk(fault: &str, limits: Limits) -> (Desk, Built) {
    let built = faulty(fault);
    let library = Library::load(&built.library).unwrap();
    (Desk::open(limits, move || library.open("{}")), built)
}

fn unavailable<T: std::fmt::Debug>(answer: Result<T, Failure>) -> String {
    match answer {
        Err(Failure::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_example_in_c_is_driven_through_all_of_the_contract() {
    let (desk, _built) = example(r#"{"ranks": 3}"#);
    assert_eq!(desk.ranks(), Ok(3));
    let interval = Knob {
        name: "prefill_decode_interval".into(),
        unit: "ticks".into(),
        low: 0,
        high: 1000,
        value: 0,
    };
    assert_eq!(desk.knobs(2).unwrap().first(), Some(&interval));
    desk.knob_set(Some(1), "prefill_decode_interval", 4)
        .unwrap();
    let values = |name| [0, 1, 2].map(|rank| desk.knob_get(rank, name).unwrap());
    assert_eq!(values("prefill_decode_interval"), [0, 4, 0]);
    desk.knob_set(None, "prefill_decode_interval", 10).unwrap();
    assert_eq!(values("prefill_decode_interval"), [10; 3]);
    assert_eq!(
        desk.knob_set(None, "max_queue_ms", -1),
        Err(Failure::Unavailable(
            "max_queue_ms: wanted 0 to 60000, found -1".into()
        ))
    );
    assert_eq!(values("max_queue_ms"), [5000; 3]);

    assert_eq!(desk.stat(0, "profile_windows"), Ok(0.0));
    desk.profile_start(None).unwrap();
    desk.knob_set(Some(1), "max_queue_ms", 7).unwrap();
    assert!(unavailable(desk.profile_start(None)).contains("open already"));
    let said = desk.profile_stop().unwrap();
    assert!(said.starts_with("{\"duration_us\": "), "{said}");
    for (rank, set) in [(0, 0), (1, 1)] {
        let trace = desk.profile_trace(rank, PATIENT.deadline).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events[0]["args"]["name"], format!("rank {rank}"));
        assert!(
            events[1]["ts"].as_u64().unwrap() > 1_600_000_000_000_000,
            "{trace}"
        );
        assert_eq!(events[2]["args"]["knobs"], set, "{trace}");
    }
    let none = desk.profile_trace(3, PATIENT.deadline);
    assert_eq!(none, Err(Failure::Unknown));
    assert_eq!(desk.stat(0, "profile_windows"), Ok(1.0));

    let plain = Kernel {
        name: "bmm-plain".into(),
        low_m: 1,
        high_m: 512,
        ranks: 1,
        chosen: true,
        nanoseconds: None,
    };
    assert_eq!(desk.kernels(0, "bmm").unwrap().first(), Some(&plain));
    desk.kernel_choose(None, "bmm", "bmm-tiled", (64, 128))
        .unwrap();
    assert!(
        desk.kernels(2, "bmm")
            .unwrap()
            .iter()
            .any(|k| k.name == "bmm-tiled" && k.chosen)
    );
    assert!(unavailable(desk.kernel_choose(None, "bmm", "bmm-tiled", (1, 2))).contains("rows"));

    for unknown in [
        desk.knob_get(0, "no-such").map(drop),
        desk.knob_get(3, "max_queue_ms").map(drop),
        desk.knob_set(Some(3), "max_queue_ms", 1),
        desk.stat(0, "").map(drop),
        desk.kernels(0, "gemm").map(drop),
        desk.kernel_choose(None, "bmm", "no-such", (1, 1)),
    ] {
        assert_eq!(unknown, Err(Failure::Unknown));
    }
}

#[test]
fn a_configuration_that_the_driver_refuses_is_refused_with_its_words() {
    let (desk, _built) = example(r#"{"ranks": 99}"#);
    assert_eq!(unavailable(desk.ranks()), "ranks: wanted 1 to 64");
    let (desk, _built) = desk_of("OPEN_REFUSES");
    assert_eq!(unavailable(desk.ranks()), "no such device");
}

fn desk_of(fault: &str) -> (Desk, Built) {
    desk(fault, PATIENT)
}

#[test]
fn a_library_that_is_no_driver_for_this_host_is_refused_with_what_was_wanted() {
    let cases = [
        (
            "NO_SYMBOL",
            "wanted the function `pointsman_engine_v1`, found none",
        ),
        ("NO_TABLE", "returned no table"),
        ("VERSION", "wanted a table of version 1, found 7"),
        (
            "SHORT_TABLE",
            "wanted a table of at least 72 bytes, found 64",
        ),
        (
            "MISSING_FUNCTION",
            "wanted the function `knob_set` in its table, found null",
        ),
    ];
    for (fault, wanted) in cases {
        let built = faulty(fault);
        let error = Library::load(&built.library).unwrap_err().to_string();
        assert!(
            error.contains(wanted) && error.contains("driver.so"),
            "{fault}: {error}"
        );
    }
    let missing = Library::load("/no/such/driver.so").unwrap_err();
    assert!(matches!(missing, LoadError::File { .. }), "{missing}");
    assert!(missing.to_string().contains("/no/such/driver.so"));
    let text = Library::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    let text = text.unwrap_err().to_string();
    assert!(text.contains("wanted a shared library (ELF)"), "{text}");
    let folder = Library::load("/").unwrap_err().to_string();
    assert!(folder.contains("wanted a regular file"), "{folder}");
    let place = tempfile::tempdir().unwrap();
    let pipe = place.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let pipe = Library::load(&pipe).unwrap_err().to_string();
    assert!(pipe.contains("wanted a regular file"), "{pipe}");
    // A program, not a library; no matter for whom it was linked.
    let program = Library::load(std::env::current_exe().unwrap());
    assert!(matches!(
        program,
        Err(LoadError::MissingSymbol { .. } | LoadError::File { .. } | LoadError::Load { .. })
    ));
}

#[test]
fn a_library_that_lacks_something_is_refused_with_the_name_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("d.c"), folder.path().join("d.so"));
    let text = "void nowhere_to_be_found(void);\n\
                const void *pointsman_engine_v1(void) { nowhere_to_be_found(); return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"])
        .args([&library, &source]);
    assert!(cc.status().unwrap().success());
    let error = Library::load(&library).unwrap_err().to_string();
    assert!(
        error.contains("dlopen failed: ") && error.contains("nowhere_to_be_found"),
        "{error}"
    );
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused_before_the_systems_loader_dies_of_it() {
    let built = build("../../examples/engine-driver-c/driver.c", None);
    let whole = std::fs::read(&built.library).unwrap();
    let cut = built.library.with_file_name("cut.so");
    let lengths = (0..whole.len())
        .step_by(97)
        .chain([0, 1, 15, 16, 63, 64, whole.len() - 1]);
    for length in lengths {
        std::fs::write(&cut, &whole[..length]).unwrap();
        let error = Library::load(&cut).unwrap_err();
        assert!(matches!(error, LoadError::File { .. }), "{length}: {error}");
        assert!(error.to_string().contains("cut.so"), "{length}: {error}");
        std::fs::remove_file(&cut).unwrap();
    }
    std::fs::write(&cut, &whole).unwrap();
    Library::load(&cut).unwrap();
}

#[test]
fn a_table_that_ends_early_lacks_what_is_optional_and_a_longer_one_is_taken() {
    let (old, _built) = desk_of("OLD_TABLE");
    assert_eq!(old.knob_get(0, "depth"), Ok(1));
    assert_eq!(old.profile_start(None), Err(Failure::Unknown));
    assert_eq!(old.kernels(0, "bmm").map(drop), Err(Failure::Unknown));
    let (newer, _built) = desk_of("NEWER_TABLE");
    assert_eq!(newer.knob_get(0, "depth"), Ok(1));
}

#[test]
fn a_trace_is_read_piece_by_piece_and_one_that_cannot_be_is_an_error_that_says_so() {
    let (good, _built) = desk_of("NONE");
    let trace = good.profile_trace(0, PATIENT.deadline).unwrap();
    assert_eq!(trace, b"{\"traceEvents\": []}");
    let (old, _built) = desk_of("TABLE_WITHOUT_TRACES");
    assert_eq!(old.profile_start(None), Ok(()));
    assert_eq!(old.profile_stop(), Ok(String::new()));
    let none = old.profile_trace(0, PATIENT.deadline);
    assert_eq!(none, Err(Failure::Unknown));
    let (unset, _built) = desk_of("TRACE_UNSET");
    let empty = unset.profile_trace(0, PATIENT.deadline);
    assert_eq!(empty, Ok(Vec::new()), "what is not said is nothing");
    for (fault, said) in [
        ("TRACE_LENGTH", "bytes: wanted at most 1048576"),
        ("TRACE_ERROR", "the trace is gone"),
        (
            "TRACE_ENDLESS",
            "a trace of rank 0 of more than 67108864 bytes",
        ),
    ] {
        let (desk, _built) = desk_of(fault);
        let why = unavailable(desk.profile_trace(0, PATIENT.deadline));
        assert!(why.contains(said), "{fault}: {why}");
        assert_eq!(desk.knob_get(0, "depth"), Ok(1), "the driver goes on");
    }
}

#[test]
fn error_codes_are_failures_with_the_drivers_words_if_it_has_any() {
    for (fault, said) in [
        ("ERROR_CODE", "the engine is on fire"),
        ("SILENT_ERROR", "the engine is not available"),
        ("UNKNOWN_CODE", "the driver answers with code -77"),
        ("CONTROL_IN_MESSAGE", "on [2J fire"),
    ] {
        let (desk, _built) = desk_of(fault);
        let why = unavailable(desk.knob_get(0, "depth"));
        assert!(why.starts_with(said), "{fault}: {why}");
    }
    let (desk, _built) = desk_of("GARBAGE_MESSAGE");
    let why = unavailable(desk.knob_get(0, "depth"));
    assert_eq!(why.chars().count(), 1024, "what there was room for");
}

#[test]
fn garbage_in_an_answer_is_an_error_and_nothing_beyond_the_bounds_is_read() {
    for (fault, said) in [
        (
            "GARBAGE_COUNT",
            "18446744073709551615 entries: wanted at most 256",
        ),
        (
            "GARBAGE_LENGTH",
            "text of 9223372036854775807 bytes: wanted at most 256",
        ),
        ("NULL_TEXT", "text of 7 bytes"),
        ("NOT_UTF8", "text that is not UTF-8"),
        (
            "CONTROL_IN_NAME",
            r#"control characters in the text "de\u{1b}[2Jpth""#,
        ),
        ("NO_RANGE", r#"knob "depth" is 1, with values from 9 to 0"#),
        (
            "OUT_OF_RANGE",
            r#"knob "depth" is 10, with values from 0 to 9"#,
        ),
    ] {
        let (desk, _built) = desk_of(fault);
        let why = unavailable(desk.knobs(0));
        assert!(
            why.contains("answers with nonsense") && why.contains(said),
            "{fault}: {why}"
        );
        assert_eq!(desk.knob_get(0, "depth"), Ok(1), "the driver goes on");
    }
    let (desk, _built) = desk_of("COUNTS_MORE_THAN_IT_WRITES");
    let names: Vec<_> = desk.knobs(0).unwrap().into_iter().map(|k| k.name).collect();
    assert_eq!(names, ["depth", "", ""]);
    let (desk, _built) = desk_of("NO_RANKS");
    assert!(unavailable(desk.ranks()).contains("0 ranks: wanted 1 to 65536"));
    let (desk, _built) = desk_of("NO_HANDLE");
    assert!(unavailable(desk.ranks()).contains("`open` gave no engine"));
}

#[test]
fn a_driver_that_hangs_costs_one_caller_its_deadline_and_the_others_nothing() {
    let limits = Limits {
        deadline: Duration::from_millis(50),
        queue: 8,
    };
    let (desk, _built) = desk("HANG", limits);
    let why = unavailable(desk.knob_get(0, "depth"));
    assert_eq!(why, "the driver did not answer within 50ms");
    for _ in 0..1000 {
        let why = unavailable(desk.knobs(0));
        assert!(why.contains("in a call that should have ended"), "{why}");
    }
}

#[test]
fn a_library_stays_loaded_while_an_engine_of_it_is_open() {
    let built = build("../../examples/engine-driver-c/driver.c", None);
    let library = Library::load(&built.library).unwrap();
    let mut engine = library.open("{}").unwrap();
    drop(library);
    assert_eq!(engine.knob_get(0, "max_queue_ms"), Ok(5000));
}
