//! Between the contract's types and those of the host's core.

use crate::{
    Binding, Choice, Decision, Endpoint, Key, Keys, Load, Phase, Request, Sums, Table, Tie, Weights,
};

pointsman_core::contract_conversions!();
