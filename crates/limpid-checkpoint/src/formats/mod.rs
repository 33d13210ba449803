//! The formats that models are kept in: the table of them, and what limpid asks of each ([`format`]). A format is a
//! file here, or a folder: it maps its names, shapes and settings to limpid's (`links`, `rows`, `express`).

mod express;
mod format;
pub(crate) mod gguf;
pub(crate) mod huggingface;
pub(crate) mod limpid;
pub(crate) mod links;
mod llmc;
mod rows;
pub(crate) mod writing;

pub use express::regained;
pub(crate) use express::{changes_nothing, outline};
pub(crate) use format::{ModelFormat, Place, ReadModel};

use crate::store::Dtype;
use limpid_core::config::{Axis, axis};
use limpid_tokenizer::{Tokenizer, TokenizerError};

macro_rules! formats {
    ($($(#[$doc:meta])* $format:ident = $name:literal is $implementation:expr,)*) => {
        axis! {
            /// Whose files a model is kept in.
            Format, "format" { $($(#[$doc])* $format = $name,)* }
        }

        impl Format {
            pub(crate) fn implementation(self) -> &'static dyn ModelFormat {
                match self { $(Format::$format => &$implementation,)* }
            }
        }
    };
}

formats! {
    /// limpid's own folder.
    Limpid = "limpid" is limpid::LimpidFolder,
    /// A folder of HuggingFace's transformers.
    HuggingFace = "hf" is huggingface::HuggingFaceFolder,
    /// llama.cpp's GGUF, one file.
    Gguf = "gguf" is gguf::GgufFile,
    /// llm.c's `.bin`, one file.
    Llmc = "llmc" is llmc::LlmcFile,
}

impl Format {
    /// The format of what is at a place, if it is of any.
    pub(crate) fn detect(place: &Place) -> Option<Format> {
        Format::ALL.iter().copied().find(|format| format.implementation().detect(place))
    }

    /// The formats that are files, as messages call them.
    pub fn files() -> String {
        let files = Format::ALL.iter().filter_map(|format| Some(format.implementation().file()?.1));
        files.collect::<Vec<_>>().join(" and ")
    }

    /// The names of the formats that are folders.
    pub fn folders() -> String {
        let mut names: Vec<&str> = Format::ALL.iter().filter(|format| format.is_folder()).map(|f| f.name()).collect();
        names.sort_unstable();
        names.join(" and ")
    }

    /// Whether such a model is a folder; else it is one file.
    pub fn is_folder(self) -> bool {
        self.ending().is_none()
    }

    /// What the names of its files end in; nothing where a model is a folder.
    pub fn ending(self) -> Option<&'static str> {
        self.implementation().file().map(|(ending, _)| ending)
    }

    /// Whether each tensor may have a type of its own, blocks too.
    pub fn mixes_types(self) -> bool {
        self.implementation().mixes_types()
    }

    /// Why it has no place for a tokenizer; the model is then written without.
    pub fn tokenizer_error(self, tokenizer: &Tokenizer) -> Option<TokenizerError> {
        self.implementation().tokenizer_error(tokenizer)
    }

    /// What its own program makes of a tokenizer otherwise than limpid does, in sentences.
    pub fn tokenizer_differences(self, tokenizer: &Tokenizer) -> Vec<&'static str> {
        self.implementation().tokenizer_differences(tokenizer)
    }
}

impl Dtype {
    /// This, or f32 where the format has nothing like it: blocks are GGUF's alone, some are only read, and llm.c has no
    /// f16.
    pub fn in_format(self, format: Format) -> Dtype {
        format.implementation().storable(self)
    }
}
