//! Files that transformers reads: `AutoTokenizer.from_pretrained(folder)` gives the same ids.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{
    ImportedTokenizer, Split, Tokenizer, TokenizerError, files,
    spec::{Merge, Spec, Vocab},
    table,
};

impl Tokenizer {
    /// Writes files into `dir` that transformers' `AutoTokenizer` reads and gives the same ids with: a full
    /// tokenizer.json, tokenizer_config.json, and for `gpt2` vocab.json and merges.txt. `model_max_length` is the
    /// model's context.
    pub fn export(&self, dir: &Path, model_max_length: usize) -> Result<Vec<PathBuf>, TokenizerError> {
        let mut files: Vec<(&str, String)> = Vec::new();
        match self {
            Tokenizer::Bpe(encoding) => {
                let spec = table::encoding(*encoding);
                files.push(("tokenizer.json", written(&spec)?));
                if encoding.is_gpt2() {
                    byte_pairs(&spec, &mut files)?;
                }
            }
            Tokenizer::Imported(imported) if other_gpt2(imported) => {
                files.push(("tokenizer.json", self.to_json()));
                byte_pairs(&imported.spec()?, &mut files)?;
            }
            other => files.push(("tokenizer.json", full_json(other)?)),
        }
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model_max_length,
            "clean_up_tokenization_spaces": false
        });
        for (key, id) in self.roles() {
            if let Some((token, _)) = self.specials().into_iter().find(|(_, other)| *other == id) {
                config[key] = token.into();
            }
        }
        files.push(("tokenizer_config.json", format!("{config:#}\n")));
        let write = |(name, text): (&str, String)| {
            let path = dir.join(name);
            files::write(&path, &text).map(|()| path)
        };
        files.into_iter().map(write).collect()
    }

    /// Writes the tokenizer.json that [`export`](Tokenizer::export) writes: whole, where [`save`](Tokenizer::save) only
    /// names an encoding.
    pub fn export_json(&self, path: &Path) -> Result<(), TokenizerError> {
        files::write(path, &full_json(self)?)
    }

    /// The special tokens that have a part in transformers' tokenizer_config.json, by the name of the part.
    pub fn roles(&self) -> Vec<(&'static str, u32)> {
        let known = |names: &[&str]| names.iter().find_map(|name| self.special(name));
        let end = self.end_of_text();
        let same = end.filter(|_| matches!(self, Tokenizer::Bpe(encoding) if encoding.is_gpt2()));
        let all = [
            ("bos_token", self.begin_of_text().or(same)),
            ("eos_token", end),
            ("unk_token", known(&["<UNK>", "[UNK]", "<unk>"]).or(same)),
            ("pad_token", known(&["<PAD>", "[PAD]", "<pad>"])),
            ("mask_token", known(&["<MASK>", "[MASK]", "<mask>"])),
            ("cls_token", known(&["[CLS]"])),
            ("sep_token", known(&["[SEP]"])),
        ];
        all.into_iter().filter_map(|(role, id)| Some((role, id?))).collect()
    }
}

/// The full tokenizer.json.
fn full_json(tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
    match tokenizer {
        Tokenizer::Bpe(encoding) => written(&table::encoding(*encoding)),
        Tokenizer::Dense(_) => Err(TokenizerError::Format(table::DENSE.into())),
        Tokenizer::Imported(imported) if imported.is_scored() => written(&table::merged(imported.spec()?)?),
        other => Ok(other.to_json()),
    }
}

/// Whoever reads vocab.json and merges.txt cuts text as GPT-2 does.
fn other_gpt2(imported: &ImportedTokenizer) -> bool {
    imported.pairs().is_some_and(|pairs| pairs.split == Split::Gpt2)
}

fn byte_pairs(spec: &Spec, files: &mut Vec<(&str, String)>) -> Result<(), TokenizerError> {
    if let (Vocab::Ids(pairs), Some(merges)) = (&spec.model.vocab, &spec.model.merges) {
        let lines = merges.iter().map(|Merge(a, b)| format!("{a} {b}\n"));
        files.push(("merges.txt", std::iter::once("#version: 0.2\n".to_string()).chain(lines).collect()));
        files.push(("vocab.json", written(&Vocab::Ids(pairs.clone()))?));
    }
    Ok(())
}

fn written(value: &impl serde::Serialize) -> Result<String, TokenizerError> {
    serde_json::to_string(value).map_err(|error| TokenizerError::Json(error.to_string()))
}
