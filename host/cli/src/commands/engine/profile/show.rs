//! A window's index, for people.

use crate::commands::remote::{field, text};
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::Value;

/// Of what an engine said, characters.
const SAID: usize = 60;

/// Whether every engine did what was wanted.
pub(super) fn is_whole(index: &Value) -> bool {
    let well = |part: &Value| field(part, "error").is_null();
    well(index) && engines(index).all(|engine| well(engine) && traces(engine).all(well))
}

/// The files that an index names.
pub(super) fn files(index: &Value) -> Vec<String> {
    let traces = engines(index).flat_map(traces);
    let all = traces.chain([field(index, "merged")]);
    all.filter_map(|part| Some(field(part, "file").as_str()?.to_owned()))
        .collect()
}

/// A table of the engines, and where it all is.
pub(super) fn show(index: &Value) {
    let mut table = Table::new();
    table
        .load_preset(ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(["engine", "role", "ranks", "events", "bytes", "file"]);
    for column in 2..5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut errors = Vec::new();
    for engine in engines(index) {
        let (name, role) = (text(engine, "engine"), text(engine, "role"));
        let sum = |name: &str| -> u64 {
            traces(engine)
                .filter_map(|trace| field(trace, name).as_u64())
                .sum()
        };
        let there: Vec<&str> = (traces(engine))
            .filter_map(|trace| field(trace, "file").as_str())
            .collect();
        let file = match there.as_slice() {
            [] => said(engine),
            [one] => (*one).to_owned(),
            [first, .., last] => format!("{first} … {last}"),
        };
        let cells = [
            name.to_owned(),
            role.to_owned(),
            there.len().to_string(),
            sum("events").to_string(),
            sum("bytes").to_string(),
            file,
        ];
        table.add_row(cells);
        if let Some(error) = field(engine, "error").as_str() {
            errors.push(format!("{name}: {error}"));
        }
        for trace in traces(engine) {
            if let Some(error) = field(trace, "error").as_str() {
                errors.push(format!("{name}/{}: {error}", field(trace, "rank")));
            }
        }
    }
    say!("{table}");
    if let Some(folder) = field(index, "folder").as_str() {
        let merged = field(index, "merged");
        if let Some(file) = field(merged, "file").as_str() {
            let events = field(merged, "events");
            say!("all       {folder}/{file} ({events} events, for ui.perfetto.dev)");
        }
        say!("index     {folder}/index.json");
    }
    errors.extend(field(index, "error").as_str().map(str::to_owned));
    for error in errors {
        eprintln!("pointsman: {error}");
    }
}

/// In a line: what there is to say of an engine that hands no traces out.
fn said(engine: &Value) -> String {
    let said = match field(engine, "said") {
        Value::Null => return "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let line: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SAID) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

fn engines(index: &Value) -> impl Iterator<Item = &Value> {
    field(index, "engines").as_array().into_iter().flatten()
}

fn traces(engine: &Value) -> impl Iterator<Item = &Value> {
    field(engine, "traces").as_array().into_iter().flatten()
}
