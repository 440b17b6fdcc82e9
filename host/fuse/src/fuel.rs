//! An end to every decision: Envoy gives a filter no CPU limit of its own.
//!
//! One number counts what the policy may still spend. It is set when the adapter calls in, and goes
//! down where a function begins and where a loop begins anew, by the number of instructions from there
//! to the next such place. Below zero the module traps. A jump may skip such a place, so the count is
//! no exact one; but no path runs forever without passing one, which is what matters. The adapter's
//! own code is not counted.

use wasm_encoder::{BlockType, CodeSection, InstructionSink, reencode};
use wasmparser::{FunctionBody, Operator};

/// Where the count is kept, and what is called below zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    pub(crate) global: u32,
    pub(crate) exhausted: u32,
}

impl Meter {
    /// A function of the policy, counted.
    pub(crate) fn body<T: reencode::Reencode>(
        self,
        reencoder: &mut T,
        code: &mut CodeSection,
        body: &FunctionBody<'_>,
    ) -> Result<(), reencode::Error<T::Error>> {
        let operators: Vec<Operator<'_>> =
            (body.get_operators_reader()?.into_iter()).collect::<wasmparser::Result<_>>()?;
        let mut costs = costs(&operators).into_iter();
        let mut function = reencoder.new_function_with_parsed_locals(body)?;
        self.charge(&mut function.instructions(), costs.next());
        for operator in operators {
            let begins_anew = matches!(operator, Operator::Loop { .. });
            function.instruction(&reencoder.instruction(operator)?);
            if begins_anew {
                self.charge(&mut function.instructions(), costs.next());
            }
        }
        code.function(&function);
        Ok(())
    }

    fn charge(self, code: &mut InstructionSink<'_>, cost: Option<i64>) {
        code.global_get(self.global);
        code.i64_const(cost.unwrap_or(1)).i64_sub();
        code.global_set(self.global);
        code.global_get(self.global).i64_const(0).i64_lt_s();
        code.if_(BlockType::Empty).call(self.exhausted).end();
    }
}

/// Of the function's beginning, then of each loop: the instructions up to the next loop, at least one.
fn costs(operators: &[Operator<'_>]) -> Vec<i64> {
    (operators.split(|operator| matches!(operator, Operator::Loop { .. })))
        .map(|run| (run.len() as i64).max(1))
        .collect()
}
