//! The reference engine's settings as knobs: whole numbers with a range.

use serde_json::{Value, json};

use crate::driver::Knob;

/// How a setting is a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// 0 or 1.
    Switch,
    /// As it is.
    Whole,
    /// A part of 1, in thousandths.
    Part,
    /// The same; -1: none.
    PartOrNone,
    /// A number; -1: none.
    OrNone,
}

struct Setting(&'static str, &'static str, i64, i64, Form);

const TICKS: i64 = u32::MAX as i64;

/// Name, unit, lowest, highest, form. They hold for the whole engine, whichever rank is named: ranks
/// that decide together decide by the same thresholds.
const SETTINGS: [Setting; 9] = [
    Setting("prefill_delayer", "0 or 1", 0, 1, Form::Switch),
    Setting("prefill_decode_interval", "ticks", 0, TICKS, Form::Whole),
    Setting("target_fill", "thousandths", 50, 1000, Form::Part),
    Setting("ttft_max_ticks", "ticks", 1, TICKS, Form::Whole),
    Setting("partial_max_ticks", "ticks", 1, TICKS, Form::Whole),
    Setting("stall_ticks", "ticks", 1, TICKS, Form::Whole),
    Setting("kv_high_watermark", "thousandths", 0, 1000, Form::Part),
    Setting(
        "token_usage_low_watermark",
        "thousandths, -1: never",
        -1,
        1000,
        Form::PartOrNone,
    ),
    Setting(
        "max_queue_ms",
        "ms, -1: never",
        -1,
        86_400_000,
        Form::OrNone,
    ),
];

impl Form {
    fn read(self, value: &Value) -> Option<i64> {
        match self {
            Self::Switch => value.as_bool().map(i64::from),
            Self::Whole => value.as_i64(),
            Self::Part => whole(value.as_f64()? * 1000.0),
            Self::PartOrNone | Self::OrNone if value.is_null() => Some(-1),
            Self::PartOrNone => whole(value.as_f64()? * 1000.0),
            Self::OrNone => whole(value.as_f64()?),
        }
    }

    fn write(self, value: i64) -> Value {
        match self {
            Self::Switch => json!(value != 0),
            Self::PartOrNone | Self::OrNone if value < 0 => Value::Null,
            Self::Part | Self::PartOrNone => json!(value as f64 / 1000.0),
            Self::Whole | Self::OrNone => json!(value),
        }
    }
}

fn whole(number: f64) -> Option<i64> {
    (number.abs() < 9e15).then(|| number.round() as i64)
}

/// All knobs, with the values in `server_args`; those that it lacks are left out.
#[must_use]
pub fn knobs(server_args: &Value) -> Vec<Knob> {
    let knob = |Setting(name, unit, low, high, form): &Setting| {
        Some(Knob {
            name: (*name).to_owned(),
            unit: (*unit).to_owned(),
            low: *low,
            high: *high,
            value: form.read(server_args.get(name)?)?,
        })
    };
    SETTINGS.iter().filter_map(knob).collect()
}

/// What a knob's value is in JSON, or what is wrong with it. None: no such knob.
#[must_use]
pub fn write(name: &str, value: i64) -> Option<Result<Value, String>> {
    let Setting(_, unit, low, high, form) = SETTINGS.iter().find(|setting| setting.0 == name)?;
    Some(if (*low..=*high).contains(&value) {
        Ok(form.write(value))
    } else {
        Err(format!(
            "`{name}`: wanted {low} to {high} ({unit}), found {value}"
        ))
    })
}
