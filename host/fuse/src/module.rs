//! A core module, as far as the linker has to know it.

use crate::Error;
use crate::synth::Signature;
use std::collections::BTreeMap;
use wasm_encoder::{Instruction, ValType};
use wasmparser::{
    CompositeInnerType, ConstExpr, ExternalKind, Operator, Parser, Payload, SubType, TypeRef,
};

/// The index spaces that modules share with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Function,
    Table,
    Memory,
    Global,
    Tag,
}

/// One number for each [`Kind`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PerKind {
    function: u32,
    table: u32,
    memory: u32,
    global: u32,
    tag: u32,
}

/// A definition in the module to come, before it has a number there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    /// of a module, as numbered in that module
    Of {
        module: usize,
        kind: Kind,
        index: u32,
    },
    /// the nth function of the proxy
    Proxy(u32),
    /// a variable of the fuser's own
    Cell(Cell),
    /// a function of the fuser's own
    Made(usize),
}

/// The fuser's own variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cell {
    /// whether a component instance may call out now
    MayLeave(u32),
    /// a slot of `context.get`: there is one task only
    Context(u32),
    /// what the policy may still spend
    Fuel,
}

#[derive(Clone, Debug)]
pub(crate) struct Import {
    pub(crate) module: String,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// of a function: its type
    pub(crate) ty: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct CoreModule {
    pub(crate) wasm: Vec<u8>,
    pub(crate) imports: Vec<Import>,
    pub(crate) imported: PerKind,
    pub(crate) defined: PerKind,
    pub(crate) types: u32,
    /// of each type: what it is, if it is a function of numbers
    signatures: Vec<Option<Signature>>,
    /// of each function: its type
    functions: Vec<u32>,
    pub(crate) elements: u32,
    pub(crate) data: u32,
    pub(crate) exports: BTreeMap<String, (Kind, u32)>,
    pub(crate) start: Option<u32>,
    /// of each defined global: its value, if that never changes
    pub(crate) constants: Vec<Option<Constant>>,
}

/// The value of a global that never changes.
#[derive(Clone, Debug)]
pub(crate) enum Constant {
    Number(Instruction<'static>),
    /// that of another global of the module
    Same(u32),
}

impl CoreModule {
    /// Reads a valid module.
    pub(crate) fn read(wasm: &[u8]) -> Result<CoreModule, Error> {
        CoreModule::parse(wasm).map_err(|error| Error::internal("reading a core module", error))
    }

    fn parse(wasm: &[u8]) -> wasmparser::Result<CoreModule> {
        let mut module = CoreModule {
            wasm: wasm.to_vec(),
            ..CoreModule::default()
        };
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(section) => {
                    for group in section {
                        for ty in group?.types() {
                            module.types += 1;
                            module.signatures.push(signature(ty));
                        }
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        let (kind, ty) = match import.ty {
                            TypeRef::Func(ty) | TypeRef::FuncExact(ty) => {
                                (Kind::Function, Some(ty))
                            }
                            TypeRef::Table(_) => (Kind::Table, None),
                            TypeRef::Memory(_) => (Kind::Memory, None),
                            TypeRef::Global(_) => (Kind::Global, None),
                            TypeRef::Tag(_) => (Kind::Tag, None),
                        };
                        *module.imported.of_mut(kind) += 1;
                        module.functions.extend(ty);
                        module.imports.push(Import {
                            module: import.module.to_owned(),
                            name: import.name.to_owned(),
                            kind,
                            ty,
                        });
                    }
                }
                Payload::FunctionSection(section) => {
                    module.defined.function = section.count();
                    for ty in section {
                        module.functions.push(ty?);
                    }
                }
                Payload::TableSection(section) => module.defined.table = section.count(),
                Payload::MemorySection(section) => module.defined.memory = section.count(),
                Payload::TagSection(section) => module.defined.tag = section.count(),
                Payload::GlobalSection(section) => {
                    module.defined.global = section.count();
                    for global in section {
                        let global = global?;
                        let value = constant(&global.init_expr)?;
                        module.constants.push(value.filter(|_| !global.ty.mutable));
                    }
                }
                Payload::ElementSection(section) => module.elements = section.count(),
                Payload::DataSection(section) => module.data = section.count(),
                Payload::StartSection { func, .. } => module.start = Some(func),
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export?;
                        let place = (Kind::from(export.kind), export.index);
                        module.exports.insert(export.name.to_owned(), place);
                    }
                }
                _ => {}
            }
        }
        Ok(module)
    }

    /// The core type of a function, if it takes and gives numbers only.
    pub(crate) fn signature(&self, function: u32) -> Option<&Signature> {
        let ty = *self.functions.get(function as usize)?;
        self.signatures.get(ty as usize)?.as_ref()
    }

    /// What it exports under a name.
    pub(crate) fn export(&self, kind: Kind, name: &str) -> Option<u32> {
        let (found, index) = *self.exports.get(name)?;
        (found == kind).then_some(index)
    }
}

impl Import {
    /// As functions of WIT are named.
    pub(crate) fn full_name(&self) -> String {
        match self.module.as_str() {
            "$root" => self.name.clone(),
            module => format!("{module}#{}", self.name),
        }
    }
}

fn signature(ty: &SubType) -> Option<Signature> {
    let CompositeInnerType::Func(function) = &ty.composite_type.inner else {
        return None;
    };
    let all =
        |types: &[wasmparser::ValType]| types.iter().map(number_type).collect::<Option<Vec<_>>>();
    Some(Signature {
        params: all(function.params())?,
        results: all(function.results())?,
    })
}

fn number_type(ty: &wasmparser::ValType) -> Option<ValType> {
    match ty {
        wasmparser::ValType::I32 => Some(ValType::I32),
        wasmparser::ValType::I64 => Some(ValType::I64),
        wasmparser::ValType::F32 => Some(ValType::F32),
        wasmparser::ValType::F64 => Some(ValType::F64),
        wasmparser::ValType::V128 => Some(ValType::V128),
        wasmparser::ValType::Ref(_) => None,
    }
}

/// An expression of one step; of more: none.
fn constant(expression: &ConstExpr<'_>) -> wasmparser::Result<Option<Constant>> {
    let mut steps = expression.get_operators_reader();
    let value = match steps.read()? {
        Operator::I32Const { value } => Constant::Number(Instruction::I32Const(value)),
        Operator::I64Const { value } => Constant::Number(Instruction::I64Const(value)),
        Operator::GlobalGet { global_index } => Constant::Same(global_index),
        _ => return Ok(None),
    };
    Ok(matches!(steps.read()?, Operator::End).then_some(value))
}

impl PerKind {
    pub(crate) fn of(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Function => self.function,
            Kind::Table => self.table,
            Kind::Memory => self.memory,
            Kind::Global => self.global,
            Kind::Tag => self.tag,
        }
    }

    pub(crate) fn of_mut(&mut self, kind: Kind) -> &mut u32 {
        match kind {
            Kind::Function => &mut self.function,
            Kind::Table => &mut self.table,
            Kind::Memory => &mut self.memory,
            Kind::Global => &mut self.global,
            Kind::Tag => &mut self.tag,
        }
    }
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] = [
        Kind::Function,
        Kind::Table,
        Kind::Memory,
        Kind::Global,
        Kind::Tag,
    ];
}

impl From<ExternalKind> for Kind {
    fn from(kind: ExternalKind) -> Kind {
        match kind {
            ExternalKind::Func | ExternalKind::FuncExact => Kind::Function,
            ExternalKind::Table => Kind::Table,
            ExternalKind::Memory => Kind::Memory,
            ExternalKind::Global => Kind::Global,
            ExternalKind::Tag => Kind::Tag,
        }
    }
}
