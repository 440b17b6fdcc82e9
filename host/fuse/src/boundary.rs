//! The border: functions that copy parameters and results between two memories.
//!
//! wasmtime's generator for calls between components (FACT) makes them, so both hosts share one
//! canonical ABI. Joining the two sides as components would not do: the adapter calls the policy and
//! the policy the adapter, a cycle, which components cannot express; core functions can.
//! [`Generator`] is all that the fuser wants of it, so that another one could take its place.

use crate::Error;
use crate::flatten::Provider;
use crate::flatten::{features, tunables};
use crate::module::{Cell, CoreModule, Item, Kind};
use crate::synth::{Made, Signature};
use wasmtime_environ::component::dfg;
use wasmtime_environ::component::{
    Adapter, AdapterOptions, ComponentTypesBuilder, DataModel, ExportItem, FixedEncoding,
    RuntimeComponentInstanceIndex, StringEncoding, Transcode, TypeFuncIndex,
};
use wasmtime_environ::{
    EntityIndex, EntityRef, FuncIndex, Memory, MemoryIndex, ModuleInternedTypeIndex, fact,
};

/// A call from one side to the other.
pub(crate) struct Crossing {
    pub(crate) ty: TypeFuncIndex,
    pub(crate) caller: Side,
    pub(crate) callee: Side,
    /// the callee's core function
    pub(crate) function: Item,
}

/// One end of it.
pub(crate) struct Side {
    pub(crate) instance: RuntimeComponentInstanceIndex,
    pub(crate) core_type: ModuleInternedTypeIndex,
    /// the core type, spelt out
    pub(crate) signature: Signature,
    pub(crate) memory: Option<(Item, Memory)>,
    pub(crate) realloc: Option<Item>,
    pub(crate) post_return: Option<Item>,
}

/// The functions of all crossings.
pub(crate) struct Border {
    /// the module that holds them
    pub(crate) module: CoreModule,
    /// what its imports are
    pub(crate) imports: Vec<Provider>,
    /// of each crossing: the function's number in the module
    pub(crate) functions: Vec<u32>,
}

/// Makes the functions of the border.
pub(crate) trait Generator {
    /// One more call.
    fn cross(&mut self, at: usize, crossing: &Crossing);
    /// All of them as one module.
    fn finish(self, crossings: usize) -> Result<Border, Error>;
}

/// wasmtime's.
pub(crate) fn border(
    types: &ComponentTypesBuilder,
    crossings: &[Crossing],
) -> Result<Border, Error> {
    let tunables = tunables();
    let mut generator = Fact {
        module: fact::Module::new(types, &tunables, features()),
        items: Vec::new(),
    };
    for (at, crossing) in crossings.iter().enumerate() {
        generator.cross(at, crossing);
    }
    generator.finish(crossings.len())
}

struct Fact<'a> {
    module: fact::Module<'a>,
    /// The generator speaks of exports of instances: each item is the only export of one.
    items: Vec<Item>,
}

impl Generator for Fact<'_> {
    fn cross(&mut self, at: usize, crossing: &Crossing) {
        let adapter = Adapter {
            lift_ty: crossing.ty,
            lift_options: self.options(&crossing.callee),
            lower_ty: crossing.ty,
            lower_options: self.options(&crossing.caller),
            func: self.function(&crossing.function),
        };
        self.module.adapt(&at.to_string(), &adapter);
    }

    fn finish(mut self, crossings: usize) -> Result<Border, Error> {
        let module = CoreModule::read(&self.module.encode())?;
        let imports = (self.module.imports().iter()).map(|import| self.provider(import));
        let imports = imports.collect::<Result<_, _>>()?;
        let functions = (0..crossings).map(|at| module.export(Kind::Function, &at.to_string()));
        let functions = (functions.collect::<Option<_>>())
            .ok_or_else(|| Error::internal(STAGE, "a function is missing"))?;
        Ok(Border {
            module,
            imports,
            functions,
        })
    }
}

const STAGE: &str = "generating the border";

impl Fact<'_> {
    fn options(&mut self, side: &Side) -> AdapterOptions {
        let memory = (side.memory.as_ref()).map(|(item, ty)| {
            let export = dfg::CoreExport {
                instance: self.instance(item),
                item: ExportItem::Index(MemoryIndex::from_u32(0)),
            };
            (export, *ty)
        });
        AdapterOptions {
            instance: side.instance,
            ancestors: Vec::new(),
            string_encoding: StringEncoding::Utf8,
            callback: None,
            post_return: (side.post_return.as_ref()).map(|item| self.function(item)),
            async_: false,
            cancellable: false,
            core_type: side.core_type,
            data_model: DataModel::LinearMemory {
                memory,
                realloc: (side.realloc.as_ref()).map(|item| self.function(item)),
            },
        }
    }

    fn function(&mut self, item: &Item) -> dfg::CoreDef {
        dfg::CoreDef::Export(dfg::CoreExport {
            instance: self.instance(item),
            item: ExportItem::Index(EntityIndex::Function(FuncIndex::from_u32(0))),
        })
    }

    fn instance(&mut self, item: &Item) -> dfg::InstanceId {
        let at = (self.items.iter().position(|known| known == item)).unwrap_or_else(|| {
            self.items.push(item.clone());
            self.items.len() - 1
        });
        dfg::InstanceId::from_u32(at as u32)
    }

    fn item(&self, definition: &dfg::CoreDef) -> Result<Item, Error> {
        let dfg::CoreDef::Export(export) = definition else {
            return Err(Error::internal(
                STAGE,
                format!("{definition:?} is no export"),
            ));
        };
        (self.items.get(export.instance.index()).cloned())
            .ok_or_else(|| Error::internal(STAGE, "an item is lost"))
    }

    /// What the generated functions need.
    fn provider(&self, import: &fact::Import) -> Result<Provider, Error> {
        match import {
            fact::Import::CoreDef(dfg::CoreDef::InstanceFlags(instance)) => Ok(Provider::Item(
                Item::Cell(Cell::MayLeave(instance.as_u32())),
            )),
            fact::Import::CoreDef(definition) => Ok(Provider::Item(self.item(definition)?)),
            fact::Import::Transcode {
                op: Transcode::Copy(FixedEncoding::Utf8),
                from,
                from64: false,
                to,
                to64: false,
            } => {
                let (from, to) = (self.item(from)?, self.item(to)?);
                Ok(Provider::Made(Made::CopyUtf8 { from, to }))
            }
            fact::Import::Trap => Ok(Provider::Made(Made::Trap(Signature {
                params: vec![wasm_encoder::ValType::I32],
                results: Vec::new(),
            }))),
            fact::Import::Transcode { op, .. } => Err(Error::Unsupported(format!(
                "strings that go from one form to another ({})",
                op.desc()
            ))),
            fact::Import::ResourceTransferOwn | fact::Import::ResourceTransferBorrow => {
                Err(Error::Resource("a value that crosses".to_owned()))
            }
            _ => Err(Error::Unsupported(
                "a type whose copy needs the host (stream, future, error-context)".to_owned(),
            )),
        }
    }
}
