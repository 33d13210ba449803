//! What a model's folder has beside what limpid computes with: files that limpid knows by name and copies unchanged
//! ([`Carried`]), and what some of them say of texts as vectors ([`SentenceRecipe`]).

use crate::error::{Result, refuse};
use crate::files::{LARGEST_JSON, at, read_json, replace, write_text};
use limpid_base::files;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file in a model's folder that says how conversations are written for it, in Jinja, as transformers reads it.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// In a folder of limpid's: the config.json of HuggingFace's that the model came with.
pub const ORIGIN: &str = "config.hf.json";
/// Where sentence-transformers says what a model's modules are.
const MODULES: &str = "modules.json";
/// Which tokens end a text, and how transformers samples.
pub const GENERATION: &str = "generation_config.json";
/// The tokenizer's, beside tokenizer.json.
#[rustfmt::skip]
const TOKENIZERS: &[&str] = &[
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
];
/// Further chat templates, by name.
pub(crate) const TEMPLATES: &str = "additional_chat_templates";
/// The key of the tokens that end a text or a turn: one, or a list.
pub(crate) const EOS: &str = "eos_token_id";
/// More than any file that is taken along has.
const LARGEST: u64 = 256 << 20;

/// Ids as config.json and generation_config.json have them: one, or a list.
pub(crate) fn ids(all: &[u32]) -> Value {
    if let [one] = all { json!(one) } else { json!(all) }
}

/// Whether it is of the tokenizer: another tokenizer makes it wrong.
fn is_tokenizers(name: &str) -> bool {
    TOKENIZERS.contains(&name) || name == GENERATION
}

/// Whether it is of sentence-transformers' settings of a text.
fn is_sentence(name: &str) -> bool {
    name.starts_with("sentence_") && name.ends_with("_config.json")
}

/// Whether a file of this name in a model's folder is taken along as it is.
pub(crate) fn is_known(name: &str) -> bool {
    is_tokenizers(name) || is_sentence(name) || [MODULES, "config_sentence_transformers.json"].contains(&name)
}

/// Whether a file of this name may be part of a model's folder, as limpid and transformers write them.
pub fn is_part(name: &str) -> bool {
    #[rustfmt::skip]
    const NAMES: &[&str] = &[
        "config.json", ORIGIN, "model.safetensors", "model.safetensors.index.json", "tokenizer.json", CHAT_TEMPLATE,
    ];
    NAMES.contains(&name) || is_known(name) || name.starts_with("model-") && name.ends_with(".safetensors")
}

/// Whether the folder `path` is that of a module or of templates: with files of such alone.
pub(crate) fn is_known_folder(path: &Path) -> bool {
    const ENDS: [&str; 5] = ["json", "safetensors", "bin", "txt", "jinja"];
    let numbered = |name: &str| name.split_once('_').is_some_and(|(n, _)| n.parse::<u8>().is_ok());
    let known = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name == TEMPLATES || numbered(name));
    let fits = |entry: fs::DirEntry| {
        let end = Path::new(&entry.file_name()).extension().is_some_and(|end| ENDS.iter().any(|known| end == *known));
        end && fs::metadata(entry.path()).is_ok_and(|about| about.is_file())
    };
    known && fs::read_dir(path).is_ok_and(|entries| entries.flatten().all(fits))
}

/// What is taken along when a folder's model is written elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    folder: PathBuf,
    /// Files, by their place in the folder.
    names: Vec<String>,
    /// The config.json of HuggingFace's that the model came with.
    origin: Option<String>,
    /// Whether the tokenizer is the folder's, too.
    tokenizer: bool,
    /// What else is in a folder of HuggingFace's.
    other: Vec<String>,
    /// Keys of HuggingFace's config.json that limpid has no use for, and that change no number.
    pub ignored: Vec<String>,
    /// The tokens that end a text or a turn, where these are not those that the files name.
    ends: Vec<u32>,
}

impl Carried {
    /// Looks through a folder; `origin` is its config.json, if that is HuggingFace's.
    pub(crate) fn open(folder: &Path, origin: Option<&str>) -> Result<Carried> {
        let (mut names, mut other) = (vec![], vec![]);
        for entry in at(folder, fs::read_dir(folder))? {
            let entry = at(folder, entry)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = entry.path();
            if is_known_folder(&path) {
                let inner = at(&path, fs::read_dir(&path))?;
                names.extend(inner.flatten().map(|file| format!("{name}/{}", file.file_name().display())));
            } else if path.is_dir() {
                other.push(format!("{name}/"));
            } else if is_known(&name) {
                names.push(name);
            } else if !is_part(&name) {
                other.push(name);
            }
        }
        other.retain(|name| origin.is_some() && !name.starts_with('.'));
        names.sort();
        other.sort();
        let stored = folder.join(ORIGIN);
        let origin = match origin {
            Some(text) => Some(text.to_string()),
            None if stored.exists() => Some(at(&stored, files::read_text(&stored, LARGEST_JSON))?),
            None => None,
        };
        Ok(Carried { folder: folder.into(), names, origin, tokenizer: true, other, ignored: vec![], ends: vec![] })
    }

    /// The same for another tokenizer, or none: without the files that speak of the old one.
    #[must_use]
    pub fn without_tokenizer(mut self) -> Carried {
        let (left, names): (Vec<String>, Vec<String>) =
            self.names.into_iter().partition(|name| is_tokenizers(name) || name.starts_with(TEMPLATES));
        self.other.extend(left);
        Carried { names, tokenizer: false, ends: vec![], ..self }
    }

    /// The same for a model whose texts and turns end with these tokens, whatever the files name.
    #[must_use]
    pub fn with_ends(mut self, ends: Vec<u32>) -> Carried {
        if let Some(origin) = self.origin.as_mut() {
            let mut config: Map<String, Value> = serde_json::from_str(origin).unwrap_or_default();
            config.insert(EOS.into(), ids(&ends));
            *origin = format!("{:#}\n", Value::from(config));
        }
        if !self.names.iter().any(|name| name == GENERATION) {
            self.names.push(GENERATION.into());
            self.names.sort();
        }
        Carried { ends, ..self }
    }

    /// What [`Carried::with_ends`] was given; else nothing.
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// What goes along as it is into a model that is a folder, or is one file, and what of this folder is left behind.
    pub fn parted(&self, into_folder: bool) -> [Vec<String>; 2] {
        if into_folder {
            return [self.names.clone(), self.other.clone()];
        }
        // one file has the tokenizer in it, or none
        let left = self.names.iter().filter(|name| !TOKENIZERS.contains(&name.as_str()));
        [vec![], left.chain(&self.other).cloned().chain(self.more_templates()).collect()]
    }

    /// What tokenizer_config.json says; null if there is none.
    fn of_tokenizer(&self) -> Value {
        let there = self.tokenizer && self.names.iter().any(|name| name == TOKENIZERS[0]);
        there.then(|| json(&self.folder.join(TOKENIZERS[0])).ok()).flatten().unwrap_or_default()
    }

    /// The chat templates in tokenizer_config.json beside the model's own.
    fn more_templates(&self) -> Vec<String> {
        let about = self.of_tokenizer();
        let named = match &about["chat_template"] {
            Value::Array(all) => all.iter().filter_map(|one| one["name"].as_str()).collect(),
            Value::Object(all) => all.keys().map(String::as_str).collect(),
            _ => vec![],
        };
        let more = named.into_iter().filter(|name| *name != "default");
        more.map(|name| format!("the chat template `{name}`")).collect()
    }

    /// The token in a role, such as `pad_token`, by tokenizer_config.json.
    pub(crate) fn in_role(&self, role: &str) -> Option<String> {
        let token = &self.of_tokenizer()[role];
        token.as_str().or(token["content"].as_str()).map(String::from)
    }

    /// What sentence-transformers takes of the hidden states, if the folder says it and limpid has it.
    ///
    /// # Errors
    /// If a file that says it is broken.
    pub(crate) fn pooling(&self) -> Result<Option<String>> {
        if !self.names.iter().any(|name| name == MODULES) {
            return Ok(None);
        }
        Ok(SentenceRecipe::read(&self.folder)?.ok().flatten().map(|recipe| recipe.pooling))
    }

    /// The config.json of HuggingFace's that the model came with, and whether its tokenizer is the one that is written.
    pub(crate) fn origin(&self) -> Option<(&str, bool)> {
        self.origin.as_deref().map(|text| (text, self.tokenizer))
    }

    /// Writes what goes along into the folder `to` of a model of limpid's.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn put_whole(&self, to: &Path) -> Result<()> {
        self.origin.as_deref().map_or(Ok(()), |text| write_text(&to.join(ORIGIN), text))?;
        self.put(to)
    }

    /// The names of what [`Carried::put_whole`] writes; of what is in a folder, the folder's.
    pub fn written(&self) -> impl Iterator<Item = &str> {
        let names = self.names.iter().map(|name| name.split_once('/').map_or(name.as_str(), |(folder, _)| folder));
        names.chain(self.origin.iter().map(|_| ORIGIN))
    }

    /// Copies the files into the folder `to`.
    pub(crate) fn put(&self, to: &Path) -> Result<()> {
        for name in &self.names {
            let (from, to) = (self.folder.join(name), to.join(name));
            let bytes = if name == GENERATION && !self.ends.is_empty() {
                let mut config: Map<String, Value> =
                    if from.exists() { read_json(&from, "it is not an object in JSON")? } else { Map::new() };
                config.insert(EOS.into(), ids(&self.ends));
                format!("{:#}\n", Value::from(config)).into_bytes()
            } else {
                at(&from, files::read_small(&from, LARGEST))?
            };
            if let Some(inner) = to.parent() {
                at(inner, files::create_folder(inner))?;
            }
            replace(&to, |beside| files::OutputFile::create(beside)?.write_all(&bytes))?;
        }
        Ok(())
    }
}

/// How sentence-transformers makes a vector of a text with a model.
#[derive(Clone, Debug, PartialEq)]
pub struct SentenceRecipe {
    /// What is taken of the hidden states, by its name there.
    pub pooling: String,
    /// Whether the vector is divided by its length.
    pub normalized: bool,
    /// Most tokens, those round the text included.
    pub max_tokens: Option<usize>,
    /// Whether the text is made lower case.
    pub lowercase: bool,
    /// What is put before the text.
    pub prompt: String,
}

impl SentenceRecipe {
    /// What a folder says of it, if it has a modules.json.
    ///
    /// # Errors
    /// If it has modules or ways of pooling that limpid has not, or a file cannot be read.
    pub fn open(folder: &Path) -> Result<Option<SentenceRecipe>> {
        SentenceRecipe::read(folder)?.or_else(|what| refuse(&folder.join(MODULES), what))
    }

    /// The same, or inside why limpid cannot do as the folder says.
    fn read(folder: &Path) -> Result<Result<Option<SentenceRecipe>, String>> {
        let path = folder.join(MODULES);
        if !path.exists() {
            return Ok(Ok(None));
        }
        let modules = json(&path)?;
        let kind = |module: &Value| module["type"].as_str().unwrap_or_default().rsplit('.').next().map(String::from);
        let kinds: Vec<String> = modules.as_array().into_iter().flatten().filter_map(kind).collect();
        let names: Vec<&str> = kinds.iter().map(String::as_str).collect();
        let normalized = match names[..] {
            ["Transformer", "Pooling"] => false,
            ["Transformer", "Pooling", "Normalize"] => true,
            _ => {
                return Ok(Err(format!(
                    "its modules are {}: limpid applies Transformer, Pooling and Normalize, in this order; name a \
                     pooling yourself to take the hidden states without them",
                    names.join(", ")
                )));
            }
        };
        let place = modules[1]["path"].as_str().filter(|place| !place.contains(['/', '\\']) && *place != "..");
        let Some(place) = place else { return refuse(&path, format!("`path` is {}", modules[1]["path"])) };
        let pooling = json(&folder.join(place).join("config.json"))?;
        let on = |(key, value): (&String, &Value)| {
            (*value == true).then(|| key.strip_prefix("pooling_mode_")).flatten().map(String::from)
        };
        let modes: Vec<String> = match &pooling["pooling_mode"] {
            Value::Null => pooling.as_object().into_iter().flatten().filter_map(on).collect(),
            Value::Array(list) => list.iter().filter_map(|mode| mode.as_str().map(String::from)).collect(),
            one => one.as_str().into_iter().map(String::from).collect(),
        };
        let [mode] = &modes[..] else {
            return Ok(Err(format!(
                "it pools in {} ways ({}): limpid applies one at a time; name it yourself",
                modes.len(),
                modes.join(", ")
            )));
        };
        // the old keys and the new values
        let mode = mode.trim_end_matches("_tokens").trim_end_matches("_token");
        let (pooling_name, prompt_too) = (mode.to_string(), pooling["include_prompt"] != false);
        let about = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let sentence = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(is_sentence);
        let about = about.filter(sentence).min().map_or(Ok(Value::Null), |path| json(&path))?;
        let prompts = json_if_there(&folder.join("config_sentence_transformers.json"))?;
        let prompt =
            prompts["default_prompt_name"].as_str().map_or("", |name| prompts["prompts"][name].as_str().unwrap_or(""));
        if !prompt_too && !prompt.is_empty() {
            return Ok(Err(format!(
                "it leaves its prompt {prompt:?} out of the pooling, which limpid does not support"
            )));
        }
        // newer versions leave the most tokens to the tokenizer
        let tokenizer = json_if_there(&folder.join(TOKENIZERS[0]))?;
        let most = about["max_seq_length"].as_u64().or(tokenizer["model_max_length"].as_u64());
        Ok(Ok(Some(SentenceRecipe {
            pooling: pooling_name,
            normalized,
            max_tokens: most.map(|most| most as usize),
            lowercase: about["do_lower_case"] == true,
            prompt: prompt.into(),
        })))
    }
}

/// The tokens that end a text or a turn, by the first of a folder's files that names any.
pub(crate) fn ends(folder: &Path) -> Result<Vec<u32>> {
    for name in [GENERATION, "config.json", ORIGIN] {
        let path = folder.join(name);
        if !path.exists() {
            continue;
        }
        let config: Map<String, Value> = read_json(&path, "it is not an object in JSON")?;
        let said = config.get(EOS).unwrap_or(&Value::Null);
        let all = said.as_array().map_or(std::slice::from_ref(said), Vec::as_slice);
        // a number below 0 stands for none; what else is in a config.json is not said for this alone
        let wrong = |id: &&Value| name == GENERATION && !id.is_null() && !id.is_u64() && !id.is_i64();
        if let Some(other) = all.iter().find(wrong) {
            let what = format!("`eos_token_id` is or has {other}: it must be the id of a token, or a list of ids");
            return refuse(&path, what);
        }
        let ids: Vec<u32> = all.iter().filter_map(|id| id.as_u64()?.try_into().ok()).collect();
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    Ok(vec![])
}

/// What a folder says of how conversations are written: a file of templates goes before tokenizer_config.json, and of
/// several by name the one that is called `default` counts. chat_template.json, which transformers has for models that
/// see pictures, is looked at last.
pub(crate) fn chat_template(folder: &Path) -> Result<Option<String>> {
    let more = folder.join(TEMPLATES);
    let names: std::io::Result<Vec<_>> = if more.exists() {
        at(&more, fs::read_dir(&more))?.map(|entry| Ok(entry?.file_name())).collect()
    } else {
        Ok(vec![])
    };
    let others = at(&more, names)?.iter().any(|name| Path::new(name).extension().is_some_and(|end| end == "jinja"));
    let files = [more.join("default.jinja"), folder.join(CHAT_TEMPLATE)];
    if let Some(file) = files.iter().find(|file| file.exists()) {
        return at(file, files::read_text(file, LARGEST_JSON)).map(Some);
    }
    if others {
        return Ok(None);
    }
    for name in ["tokenizer_config.json", "chat_template.json"] {
        let path = folder.join(name);
        if path.exists()
            && let Some(template) = listed_template(&path)?
        {
            return Ok(Some(template));
        }
    }
    Ok(None)
}

/// The chat template in a file of settings.
fn listed_template(path: &Path) -> Result<Option<String>> {
    let config: Map<String, Value> = read_json(path, "it is not an object in JSON")?;
    let template = match config.get("chat_template").unwrap_or(&Value::Null) {
        Value::Array(all) => {
            all.iter().rfind(|one| one["name"] == "default").map_or(&Value::Null, |one| &one["template"])
        }
        Value::Object(all) => all.get("default").unwrap_or(&Value::Null),
        one => one,
    };
    match template {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => refuse(path, format!("`chat_template` is {other}: it must be a text, or several by name")),
    }
}

fn json(path: &Path) -> Result<Value> {
    read_json(path, "it is not JSON")
}

fn json_if_there(path: &Path) -> Result<Value> {
    if path.exists() { json(path) } else { Ok(Value::Null) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// reference/folders.py
    #[test]
    fn of_several_chat_templates_that_of_transformers_is_taken() {
        let cases: Vec<serde_json::Value> =
            serde_json::from_str(include_str!("../fixtures/chat_templates.json")).unwrap();
        let folder = std::env::temp_dir().join(format!("limpid-templates-{}", std::process::id()));
        assert!(cases.len() > 15);
        let taken = |files: &serde_json::Value| {
            _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(folder.join(TEMPLATES)).unwrap();
            for (name, text) in files.as_object().unwrap() {
                fs::write(folder.join(name), text.as_str().unwrap()).unwrap();
            }
            chat_template(&folder).map_err(|error| error.to_string())
        };
        for case in cases {
            assert_eq!(taken(&case["files"]).unwrap().as_deref(), case["taken"].as_str(), "{case}");
        }
        // of a model that sees pictures: looked at last
        let beside = |config: &str| {
            serde_json::json!({"chat_template.json": "{\"chat_template\": \"a\"}",
            "tokenizer_config.json": config})
        };
        assert_eq!(taken(&beside("{}")).unwrap().as_deref(), Some("a"));
        assert_eq!(taken(&beside("{\"chat_template\": \"b\"}")).unwrap().as_deref(), Some("b"));
        // a file that cannot be read is no model without a template
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
        for (wrong, said) in [
            ("", "it is not an object in JSON"),
            ("{\"chat_template\": \"a\"", "it ends within an object"),
            ("[\"a\"]", "invalid type: sequence"),
            ("{\"chat_template\": 5}", "`chat_template` is 5"),
            ("{\"chat_template\": true}", "`chat_template` is true"),
            ("{\"chat_template\": {\"default\": [1]}}", "`chat_template` is [1]"),
            ("{\"chat_template\": [{\"name\": \"default\", \"template\": {}}]}", "`chat_template` is {}"),
            ("{\"x\": NaN}", "it has NaN at line 1 column 7"),
            (pointer, "git lfs pull"),
        ] {
            for name in ["chat_template.json", "tokenizer_config.json"] {
                let error = taken(&serde_json::json!({ name: wrong })).unwrap_err();
                assert!(error.contains(said) && error.contains(name), "{name} with {wrong}: {error}");
            }
        }
        for none in
            ["{}", "{\"chat_template\": null}", "{\"chat_template\": []}", "{\"chat_template\": {\"rag\": \"x\"}}"]
        {
            assert_eq!(taken(&serde_json::json!({ "chat_template.json": none })).unwrap(), None, "{none}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
