//! `/api/v1/engines`: the engines that have a driver, as they say that they are set now.

use super::Admin;
use super::refused::Refused;
use crate::engines::{EVERY, Seat};
use crate::profiling::role;
use axum::Json;
use axum::extract::State;
use pointsman_engine::{Desk, Failure, Knob};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::thread;

/// `GET engines`: asks all of them at the same time; one that does not answer is an error of its own.
pub async fn look(State(admin): State<Arc<Admin>>) -> Result<Json<Value>, Refused> {
    let look = move || {
        let seats = admin.engines.of(&EVERY);
        thread::scope(|scope| {
            let asked: Vec<_> = (seats.iter())
                .map(|(name, seat)| (name, seat, scope.spawn(|| ranks(&seat.desk))))
                .collect();
            let said = asked.into_iter().map(|(name, seat, said)| {
                let panicked = |_| Err(Failure::Unavailable("the call panicked".to_owned()));
                engine(name, seat, said.join().unwrap_or_else(panicked))
            });
            said.collect::<Vec<Value>>()
        })
    };
    let engines = tokio::task::spawn_blocking(look).await;
    let engines = engines.map_err(|error| Refused::failed("engines", error))?;
    Ok(Json(json!({ "engines": engines })))
}

fn engine(name: &str, seat: &Seat, said: Result<Vec<Value>, Failure>) -> Value {
    let role = role(seat.phase);
    match said {
        Ok(ranks) => json!({ "engine": name, "role": role, "ranks": ranks }),
        Err(error) => json!({ "engine": name, "role": role, "error": error.to_string() }),
    }
}

/// Each rank's knobs, by name.
fn ranks(desk: &Desk) -> Result<Vec<Value>, Failure> {
    let knob = |knob: Knob| {
        let Knob {
            name,
            unit,
            low,
            high,
            value,
        } = knob;
        (
            name,
            json!({ "value": value, "low": low, "high": high, "unit": unit }),
        )
    };
    let rank = |rank| {
        let knobs = desk.knobs(rank)?;
        Ok(Value::Object(Map::from_iter(knobs.into_iter().map(knob))))
    };
    (0..desk.ranks()?).map(rank).collect()
}
