//! Many modules become one: every index space is laid end to end, and every import replaced by what it
//! stands for.

use crate::Error;
use crate::flatten::{ADAPTER, Provider};
use crate::fuel::Meter;
use crate::module::{Cell, Constant, CoreModule, Item, Kind, PerKind};
use crate::synth::Made;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use wasm_encoder::reencode::{Error as ReencodeError, Reencode, utils};
use wasm_encoder::{
    CodeSection, ConstExpr, DataCountSection, DataSection, ElementSection, EntityType, ExportKind,
    ExportSection, FunctionSection, GlobalSection, GlobalType, ImportSection, Instruction,
    MemorySection, Module, TableSection, TagSection, TypeSection, ValType,
};
use wasmparser::{FunctionBody, Operator, Parser, Payload};

/// All that the fused module is made of.
#[derive(Default)]
pub(crate) struct Program {
    modules: Vec<CoreModule>,
    /// of each module: what its imports are
    imports: Vec<BTreeMap<Kind, Vec<Item>>>,
    /// functions of the proxy: module, name, type in the adapter
    proxy: Vec<(String, String, u32)>,
    made: Vec<Made>,
    cells: Vec<Cell>,
    exports: Vec<(String, Kind, Item)>,
    /// the policy's modules, if they are counted; and the start value
    fuel: Option<(Range<usize>, i64)>,
}

/// Where each module's things begin in the fused one.
#[derive(Clone, Copy, Debug, Default)]
struct Base {
    items: PerKind,
    types: u32,
    elements: u32,
    data: u32,
}

impl Program {
    /// `modules` as in [`crate::flatten::Flat`], with the border's at the end.
    pub(crate) fn new(modules: Vec<CoreModule>, proxy: Vec<(String, String, u32)>) -> Program {
        Program {
            modules,
            proxy,
            ..Program::default()
        }
    }

    /// Has the functions of these modules counted.
    pub(crate) fn meter(&mut self, modules: Range<usize>, fuel: i64) {
        self.cell(Cell::Fuel);
        let say = self.export(ADAPTER, "fuse_out_of_fuel");
        self.make(Made::OutOfFuel { say });
        self.fuel = Some((modules, fuel));
    }

    /// One more function of the fuser's own, once.
    pub(crate) fn make(&mut self, made: Made) -> Item {
        if let Made::Get(cell) | Made::Set(cell) = &made {
            self.cell(*cell);
        }
        let known = self.made.iter().position(|known| *known == made);
        Item::Made(known.unwrap_or_else(|| {
            self.made.push(made);
            self.made.len() - 1
        }))
    }

    fn cell(&mut self, cell: Cell) {
        if !self.cells.contains(&cell) {
            self.cells.push(cell);
        }
    }

    /// The imports of the next module.
    pub(crate) fn provide(&mut self, items: Vec<Item>) {
        let kinds = (self.modules.get(self.imports.len()))
            .map(|module| module.imports.iter().map(|import| import.kind))
            .into_iter()
            .flatten();
        let mut imports: BTreeMap<Kind, Vec<Item>> = BTreeMap::new();
        for (kind, item) in kinds.collect::<Vec<_>>().into_iter().zip(items) {
            if let Item::Cell(cell) = &item {
                self.cell(*cell);
            }
            imports.entry(kind).or_default().push(item);
        }
        self.imports.push(imports);
    }

    /// A function that a module exports.
    pub(crate) fn export(&self, module: usize, name: &str) -> Option<Item> {
        let index = self.modules.get(module)?.export(Kind::Function, name)?;
        Some(Item::Of {
            module,
            kind: Kind::Function,
            index,
        })
    }

    /// Chooses what the proxy sees: its own entries, the first memory, and one function that starts
    /// everything. A second memory among the exports would make Envoy read from the wrong one.
    pub(crate) fn expose(&mut self) {
        let mut starts: Vec<Item> = Vec::new();
        let policies_first = (1..self.modules.len()).chain([ADAPTER]);
        for at in policies_first {
            starts.extend(
                self.modules
                    .get(at)
                    .and_then(|module| module.start)
                    .map(|index| Item::Of {
                        module: at,
                        kind: Kind::Function,
                        index,
                    }),
            );
        }
        starts.extend(self.export(ADAPTER, "_initialize"));
        let Some(adapter) = self.modules.get(ADAPTER) else {
            return;
        };
        for (name, (kind, index)) in &adapter.exports {
            let wanted = match kind {
                Kind::Memory => name == "memory",
                Kind::Function => name == "malloc" || name.starts_with("proxy_"),
                _ => false,
            };
            if wanted {
                let item = Item::Of {
                    module: ADAPTER,
                    kind: *kind,
                    index: *index,
                };
                self.exports.push((name.clone(), *kind, item));
            }
        }
        if !starts.is_empty() {
            let start = self.make(Made::Start(starts));
            self.exports
                .push(("_initialize".to_owned(), Kind::Function, start));
        }
    }

    /// Lays everything out, and writes it.
    pub(crate) fn encode(&self) -> Result<Module, Error> {
        let layout = Layout::new(self);
        let mut out = Sections::default();
        for (module, name, ty) in &self.proxy {
            let ty = layout.base(ADAPTER).types + ty;
            out.imports.import(module, name, EntityType::Function(ty));
        }
        for (at, module) in self.modules.iter().enumerate() {
            let meter = (self.fuel.as_ref())
                .filter(|(modules, _)| modules.contains(&at))
                .map(|_| layout.meter());
            let mut mapper = Mapper {
                layout: &layout,
                module: at,
                meter,
            };
            (out.add(&mut mapper, &module.wasm))
                .map_err(|error| Error::internal("joining the modules", error))?;
        }
        for cell in &self.cells {
            let (ty, value) = match cell {
                Cell::MayLeave(_) => (ValType::I32, ConstExpr::i32_const(1)),
                Cell::Context(_) => (ValType::I32, ConstExpr::i32_const(0)),
                Cell::Fuel => {
                    let fuel = self.fuel.as_ref().map_or(0, |(_, fuel)| *fuel);
                    (ValType::I64, ConstExpr::i64_const(fuel))
                }
            };
            let ty = GlobalType {
                val_type: ty,
                mutable: true,
                shared: false,
            };
            out.globals.global(ty, &value);
        }
        for (nth, made) in self.made.iter().enumerate() {
            let signature = made.signature();
            (out.types.ty()).function(signature.params, signature.results);
            out.functions.function(layout.types + nth as u32);
            out.code.function(&made.body(&|item| layout.number(item)));
        }
        for (name, kind, item) in &self.exports {
            let kind = match kind {
                Kind::Memory => ExportKind::Memory,
                _ => ExportKind::Func,
            };
            out.exports.export(name, kind, layout.number(item));
        }
        Ok(out.module())
    }
}

/// The numbers of the fused module.
struct Layout<'a> {
    program: &'a Program,
    bases: Vec<Base>,
    /// of all modules: the fuser's own come after these
    types: u32,
    functions: u32,
    globals: u32,
}

impl<'a> Layout<'a> {
    fn new(program: &'a Program) -> Layout<'a> {
        let mut next = Base::default();
        *next.items.of_mut(Kind::Function) = program.proxy.len() as u32;
        let mut bases = Vec::new();
        for module in &program.modules {
            bases.push(next);
            for kind in Kind::ALL {
                *next.items.of_mut(kind) += module.defined.of(kind);
            }
            next.types += module.types;
            next.elements += module.elements;
            next.data += module.data;
        }
        Layout {
            program,
            bases,
            types: next.types,
            functions: next.items.of(Kind::Function),
            globals: next.items.of(Kind::Global),
        }
    }

    fn base(&self, module: usize) -> Base {
        self.bases.get(module).copied().unwrap_or_default()
    }

    /// What an import stands for, behind modules that only pass it on. A module's imports come from
    /// earlier ones, or from the border, which defines what it exports: the way ends.
    fn resolve<'i>(&'i self, mut item: &'i Item) -> &'i Item {
        while let Item::Of {
            module,
            kind,
            index,
        } = item
        {
            let imports = (self.program.imports.get(*module)).and_then(|all| all.get(kind));
            match imports.and_then(|imports| imports.get(*index as usize)) {
                Some(next) => item = next,
                None => break,
            }
        }
        item
    }

    fn number(&self, item: &Item) -> u32 {
        match self.resolve(item) {
            Item::Of {
                module,
                kind,
                index,
            } => {
                let imported = self.program.modules.get(*module);
                let imported = imported.map_or(0, |module| module.imported.of(*kind));
                self.base(*module).items.of(*kind) + index.saturating_sub(imported)
            }
            Item::Proxy(nth) => *nth,
            Item::Cell(cell) => {
                let at = self.program.cells.iter().position(|known| known == cell);
                self.globals + at.unwrap_or_default() as u32
            }
            Item::Made(nth) => self.functions + *nth as u32,
        }
    }

    /// The number that a global always holds.
    fn constant(&self, item: &Item) -> Option<Instruction<'static>> {
        let Item::Of {
            module,
            kind: Kind::Global,
            index,
        } = self.resolve(item)
        else {
            return None;
        };
        let source = self.program.modules.get(*module)?;
        let defined = index.checked_sub(source.imported.of(Kind::Global))?;
        match source.constants.get(defined as usize)?.as_ref()? {
            Constant::Number(number) => Some(number.clone()),
            // Of one defined before, or imported: the way ends.
            Constant::Same(index) => self.constant(&Item::Of {
                module: *module,
                kind: Kind::Global,
                index: *index,
            }),
        }
    }

    fn meter(&self) -> Meter {
        let exhausted = (self.program.made.iter())
            .position(|made| matches!(made, Made::OutOfFuel { .. }))
            .unwrap_or_default();
        Meter {
            global: self.number(&Item::Cell(Cell::Fuel)),
            exhausted: self.number(&Item::Made(exhausted)),
        }
    }
}

/// Rewrites one module with the numbers of the fused one.
struct Mapper<'a> {
    layout: &'a Layout<'a>,
    module: usize,
    meter: Option<Meter>,
}

type Mapped<T> = Result<T, ReencodeError<Infallible>>;

impl Mapper<'_> {
    fn item(&self, kind: Kind, index: u32) -> Item {
        Item::Of {
            module: self.module,
            kind,
            index,
        }
    }

    fn number(&self, kind: Kind, index: u32) -> u32 {
        self.layout.number(&self.item(kind, index))
    }
}

impl Reencode for Mapper<'_> {
    type Error = Infallible;

    fn function_index(&mut self, index: u32) -> Mapped<u32> {
        Ok(self.number(Kind::Function, index))
    }
    fn table_index(&mut self, index: u32) -> Mapped<u32> {
        Ok(self.number(Kind::Table, index))
    }
    fn memory_index(&mut self, index: u32) -> Mapped<u32> {
        Ok(self.number(Kind::Memory, index))
    }
    fn global_index(&mut self, index: u32) -> Mapped<u32> {
        Ok(self.number(Kind::Global, index))
    }
    fn tag_index(&mut self, index: u32) -> Mapped<u32> {
        Ok(self.number(Kind::Tag, index))
    }
    fn type_index(&mut self, index: u32) -> Mapped<u32> {
        Ok(self.layout.base(self.module).types + index)
    }
    fn element_index(&mut self, index: u32) -> Mapped<u32> {
        Ok(self.layout.base(self.module).elements + index)
    }
    fn data_index(&mut self, index: u32) -> Mapped<u32> {
        Ok(self.layout.base(self.module).data + index)
    }

    /// What was an import may now be a global of the same module, which a constant expression may
    /// read only with garbage collection, a proposal that Envoy has not: so it becomes its value.
    fn const_expr(&mut self, expression: wasmparser::ConstExpr<'_>) -> Mapped<ConstExpr> {
        let mut steps = Vec::new();
        for operator in expression.get_operators_reader() {
            let value = match &operator {
                Ok(Operator::End) => break,
                Ok(Operator::GlobalGet { global_index }) => {
                    let item = self.item(Kind::Global, *global_index);
                    self.layout.constant(&item)
                }
                _ => None,
            };
            steps.push(match value {
                Some(value) => value,
                None => self.instruction(operator?)?,
            });
        }
        Ok(ConstExpr::extended(steps))
    }

    fn parse_function_body(
        &mut self,
        code: &mut CodeSection,
        body: FunctionBody<'_>,
    ) -> Mapped<()> {
        match self.meter {
            Some(meter) => meter.body(self, code, &body),
            None => utils::parse_function_body(self, code, body),
        }
    }
}

#[derive(Default)]
struct Sections {
    types: TypeSection,
    imports: ImportSection,
    functions: FunctionSection,
    tables: TableSection,
    memories: MemorySection,
    tags: TagSection,
    globals: GlobalSection,
    exports: ExportSection,
    elements: ElementSection,
    code: CodeSection,
    data: DataSection,
}

impl Sections {
    fn add(&mut self, mapper: &mut Mapper<'_>, wasm: &[u8]) -> Mapped<()> {
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(s) => mapper.parse_type_section(&mut self.types, s)?,
                Payload::FunctionSection(s) => {
                    mapper.parse_function_section(&mut self.functions, s)?;
                }
                Payload::TableSection(s) => mapper.parse_table_section(&mut self.tables, s)?,
                Payload::MemorySection(s) => mapper.parse_memory_section(&mut self.memories, s)?,
                Payload::TagSection(s) => mapper.parse_tag_section(&mut self.tags, s)?,
                Payload::GlobalSection(s) => mapper.parse_global_section(&mut self.globals, s)?,
                Payload::ElementSection(s) => {
                    mapper.parse_element_section(&mut self.elements, s)?;
                }
                Payload::DataSection(s) => mapper.parse_data_section(&mut self.data, s)?,
                Payload::CodeSectionEntry(body) => {
                    mapper.parse_function_body(&mut self.code, body)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn module(self) -> Module {
        let mut module = Module::new();
        module
            .section(&self.types)
            .section(&self.imports)
            .section(&self.functions)
            .section(&self.tables)
            .section(&self.memories);
        if !self.tags.is_empty() {
            module.section(&self.tags);
        }
        module
            .section(&self.globals)
            .section(&self.exports)
            .section(&self.elements);
        if !self.data.is_empty() {
            let count = self.data.len();
            module.section(&DataCountSection { count });
        }
        module.section(&self.code).section(&self.data);
        module
    }
}

/// What a provider stands for in the program; `crossings` are the items of the border.
pub(crate) fn item(
    program: &mut Program,
    provider: Provider,
    crossings: &[Item],
) -> Result<Item, Error> {
    match provider {
        Provider::Item(item) => Ok(item),
        Provider::Made(made) => Ok(program.make(made)),
        Provider::Crossing(at) => (crossings.get(at).cloned())
            .ok_or_else(|| Error::internal("joining the modules", "a crossing is lost")),
    }
}
