//! Functions that neither side brings: what wasmtime's host would do in native code.

use crate::module::{Cell, Item};
use wasm_encoder::{BlockType, Function, InstructionSink, MemArg, MemArgTarget, ValType};

/// Parameters and results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) params: Vec<ValType>,
    pub(crate) results: Vec<ValType>,
}

/// A function of the fuser's own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Made {
    /// a call that must not be
    Trap(Signature),
    /// (address, bytes, address there): copies a string between memories; traps unless it is UTF-8,
    /// as whoever receives it believes that
    CopyUtf8 { from: Item, to: Item },
    /// the adapter calls the policy: its fuel begins anew
    Enter {
        function: Item,
        signature: Signature,
        fuel: i64,
    },
    /// the fuel is used up: the adapter may say so, then the end
    OutOfFuel { say: Option<Item> },
    /// all start functions, in order
    Start(Vec<Item>),
    /// reads an `i32`
    Get(Cell),
    /// writes an `i32`
    Set(Cell),
}

impl Made {
    pub(crate) fn signature(&self) -> Signature {
        let i32s = |params, results| Signature {
            params: vec![ValType::I32; params],
            results: vec![ValType::I32; results],
        };
        match self {
            Made::Trap(signature) | Made::Enter { signature, .. } => signature.clone(),
            Made::CopyUtf8 { .. } => i32s(3, 0),
            Made::OutOfFuel { .. } | Made::Start(_) => i32s(0, 0),
            Made::Get(_) => i32s(0, 1),
            Made::Set(_) => i32s(1, 0),
        }
    }

    /// `number` gives an item's number in the fused module.
    pub(crate) fn body(&self, number: &dyn Fn(&Item) -> u32) -> Function {
        let locals = match self {
            Made::CopyUtf8 { .. } => vec![(LOCALS, ValType::I32)],
            _ => Vec::new(),
        };
        let mut function = Function::new(locals);
        let mut code = function.instructions();
        match self {
            Made::Trap(_) => {
                code.unreachable();
            }
            Made::CopyUtf8 { from, to } => {
                check_utf8(&mut code, number(from));
                code.local_get(THERE).local_get(FROM).local_get(BYTES);
                code.memory_copy(number(to), number(from));
            }
            Made::Enter {
                function,
                signature,
                fuel,
            } => {
                let cell = number(&Item::Cell(Cell::Fuel));
                code.i64_const(*fuel).global_set(cell);
                for at in 0..signature.params.len() as u32 {
                    code.local_get(at);
                }
                code.call(number(function));
            }
            Made::OutOfFuel { say } => {
                if let Some(say) = say {
                    code.call(number(say));
                }
                code.unreachable();
            }
            Made::Start(all) => {
                for start in all {
                    code.call(number(start));
                }
            }
            Made::Get(cell) => {
                code.global_get(number(&Item::Cell(*cell)));
            }
            Made::Set(cell) => {
                code.local_get(0).global_set(number(&Item::Cell(*cell)));
            }
        }
        code.end();
        function
    }
}

// Of `CopyUtf8`: parameters, then locals.
const FROM: u32 = 0;
const BYTES: u32 = 1;
const THERE: u32 = 2;
const AT: u32 = 3;
const END: u32 = 4;
const BYTE: u32 = 5;
const MORE: u32 = 6;
const LOW: u32 = 7;
const HIGH: u32 = 8;
const LOCALS: u32 = 6;

/// Table 3-7 of the Unicode standard: after the first byte come `MORE` others, the first of them
/// between `LOW` and `HIGH`, the rest between 0x80 and 0xBF. Eight ASCII bytes are taken at a time.
fn check_utf8(code: &mut InstructionSink<'_>, memory: u32) {
    let byte = |offset: u64| MemArg {
        offset,
        align: 0,
        target: MemArgTarget::Memory(memory),
        ordering: None,
    };
    code.local_get(FROM)
        .local_tee(AT)
        .local_get(BYTES)
        .i32_add()
        .local_set(END);
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(AT).local_get(END).i32_ge_u().br_if(1);

    // Eight bytes of ASCII at once.
    code.local_get(END)
        .local_get(AT)
        .i32_sub()
        .i32_const(8)
        .i32_ge_u();
    code.if_(BlockType::Empty);
    code.local_get(AT).i64_load(byte(0));
    code.i64_const(0x8080_8080_8080_8080_u64 as i64)
        .i64_and()
        .i64_eqz();
    code.if_(BlockType::Empty);
    code.local_get(AT)
        .i32_const(8)
        .i32_add()
        .local_set(AT)
        .br(2);
    code.end().end();

    // One byte of ASCII.
    code.local_get(AT).i32_load8_u(byte(0)).local_tee(BYTE);
    code.i32_const(0x80).i32_lt_u().if_(BlockType::Empty);
    code.local_get(AT)
        .i32_const(1)
        .i32_add()
        .local_set(AT)
        .br(1);
    code.end();

    // A first byte is in 0xC2..=0xF4.
    code.local_get(BYTE).i32_const(0xC2).i32_sub();
    code.i32_const(0xF4 - 0xC2).i32_gt_u();
    trap_if(code);
    code.local_get(BYTE).i32_const(0xE0).i32_ge_u();
    code.local_get(BYTE).i32_const(0xF0).i32_ge_u();
    code.i32_add().i32_const(1).i32_add().local_set(MORE);
    code.local_get(END).local_get(AT).i32_sub();
    code.local_get(MORE).i32_le_u();
    trap_if(code);

    // The second byte: 0x80..=0xBF, narrower after four of the first ones.
    bound(code, LOW, 0x80, [(0xE0, 0xA0), (0xF0, 0x90)]);
    bound(code, HIGH, 0xBF, [(0xED, 0x9F), (0xF4, 0x8F)]);
    code.local_get(AT)
        .i32_load8_u(byte(1))
        .local_get(LOW)
        .i32_sub();
    code.local_get(HIGH).local_get(LOW).i32_sub().i32_gt_u();
    trap_if(code);

    // The third and the fourth.
    for nth in 2..=3_u8 {
        code.local_get(MORE).i32_const(i32::from(nth)).i32_ge_u();
        code.if_(BlockType::Empty);
        code.local_get(AT).i32_load8_u(byte(u64::from(nth)));
        code.i32_const(0xC0).i32_and().i32_const(0x80).i32_ne();
        trap_if(code);
        code.end();
    }
    code.local_get(AT)
        .local_get(MORE)
        .i32_add()
        .i32_const(1)
        .i32_add()
        .local_set(AT);
    code.br(0).end().end();
}

/// `local` = `usual`, or another value after one of two first bytes.
fn bound(code: &mut InstructionSink<'_>, local: u32, usual: i32, narrower: [(i32, i32); 2]) {
    code.i32_const(usual).local_set(local);
    for (first, value) in narrower {
        code.i32_const(value).local_get(local);
        code.local_get(BYTE).i32_const(first).i32_eq();
        code.select().local_set(local);
    }
}

fn trap_if(code: &mut InstructionSink<'_>) {
    code.if_(BlockType::Empty).unreachable().end();
}
