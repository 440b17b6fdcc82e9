//! A driver of nothing.

use crate::driver::{Driver, Failure, Knob};

/// For engines that cannot be driven, and to try a policy without one: one rank, no knobs, and
/// profiling windows that nobody notices.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullDriver;

impl Driver for NullDriver {
    fn ranks(&mut self) -> Result<u32, Failure> {
        Ok(1)
    }

    fn knobs(&mut self, _rank: u32) -> Result<Vec<Knob>, Failure> {
        Ok(Vec::new())
    }

    fn knob_get(&mut self, _rank: u32, _name: &str) -> Result<i64, Failure> {
        Err(Failure::Unknown)
    }

    fn knob_set(&mut self, _rank: Option<u32>, _name: &str, _value: i64) -> Result<(), Failure> {
        Err(Failure::Unknown)
    }

    fn stat(&mut self, _rank: u32, _name: &str) -> Result<f64, Failure> {
        Err(Failure::Unknown)
    }

    fn profile_start(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn profile_stop(&mut self) -> Result<String, Failure> {
        Ok(String::new())
    }
}
