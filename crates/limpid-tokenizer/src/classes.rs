//! The classes of transformers 5.23 that rebuild a tokenizer from its vocabulary. They take the model's tokens and
//! merges, the added tokens and usually the post_processor from tokenizer.json; everything else is fixed by the class
//! and by tokenizer_config.json. All other classes use tokenizer.json unchanged ([`WHOLE`]).
//!
//! Read `beside` for the files, `files` for where vocabularies lie.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

use super::{
    TokenizerError,
    beside::{ROLES, TokenizerFiles, content, is_same, special},
    imported::meaning,
    spec::{Added, Model, Spec, Vocab, part, steps},
    split::Split,
    steps::{bert_normalizer, blanks, byte_level, cutting, framed, replace, word_pieces},
};

/// A class's steps and settings of the model, for the vocabulary of a tokenizer.json.
type Make = fn(&Spec, &TokenizerFiles, &Class) -> Spec;

/// A class.
pub(super) struct Class {
    /// Its name, then others of it.
    names: &'static [&'static str],
    /// The kind of model that it makes.
    kind: &'static str,
    /// The tokens of [`ROLES`] where no file names them, `""` for none.
    defaults: [&'static str; 7],
    /// What it makes of a vocabulary; nothing if it takes tokenizer.json as it stands.
    make: Option<Make>,
    frame: Frame,
    /// Whether it reads vocab.json with merges.txt.
    pub reads_pairs: bool,
    /// Whether it makes special tokens plain ones again, whatever files say of blanks beside them.
    pub restores_specials: bool,
}

/// What a class puts round a text.
#[derive(Clone, Copy)]
enum Frame {
    /// What tokenizer.json says; without one, what `add_bos_token` and `add_eos_token` ask for.
    Given,
    /// What these two ask for where there is no tokenizer.json; nothing where there is one.
    Asked,
    /// The tokens of these two roles, as a post_processor of this kind, whatever tokenizer.json says.
    Roles(&'static str, [&'static str; 2]),
    /// What tokenizer.json says; without one, BERT's.
    GivenOrBerts,
}

const BPE: &str = "BPE";
const CLS: [&str; 2] = ["cls_token", "sep_token"];

/// Takes tokenizer.json as it stands.
pub(super) const WHOLE: Class = Class {
    names: &["TokenizersBackend"],
    kind: "",
    defaults: [""; 7],
    make: None,
    frame: Frame::Given,
    reads_pairs: false,
    restores_specials: false,
};

/// Byte-level byte pairs, without what others have beside.
const PLAIN: Class = Class { kind: BPE, make: Some(gpt2), reads_pairs: true, ..WHOLE };

const END: &str = "<|endoftext|>";
const BERT: [&str; 7] = ["", "", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"];
const ROBERTA: [&str; 7] = ["<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"];
const LLAMA: [&str; 7] = ["<s>", "</s>", "<unk>", "", "", "", ""];
const GEMMA: [&str; 7] = ["<bos>", "<eos>", "<unk>", "", "<pad>", "", "<mask>"];
const COHERE: [&str; 7] = ["<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<SEP>", "<PAD>", "<CLS>", "<MASK_TOKEN>"];

#[rustfmt::skip]
static CLASSES: [Class; 12] = [
    Class { names: &["GPT2Tokenizer", "CodeGenTokenizer"], defaults: [END, END, END, "", "", "", ""], ..PLAIN },
    Class {
        names: &["RobertaTokenizer", "BartTokenizer", "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer"],
        defaults: ROBERTA, frame: Frame::Roles("RobertaProcessing", CLS), ..PLAIN
    },
    Class {
        names: &["Qwen2Tokenizer"], defaults: ["", END, END, "", END, "", ""], make: Some(qwen2),
        restores_specials: true, ..PLAIN
    },
    Class {
        names: &["GPTNeoXTokenizer"], defaults: [END, END, END, "", "<|padding|>", "", ""], make: Some(gpt_neox),
        frame: Frame::Asked, ..PLAIN
    },
    Class { names: &["CohereTokenizer"], defaults: COHERE, make: Some(cohere), ..PLAIN },
    Class {
        names: &["OpenAIGPTTokenizer"], defaults: ["", "", "<unk>", "", "", "", ""], make: Some(openai_gpt), ..PLAIN
    },
    Class {
        names: &["LlamaTokenizer", "Phi3Tokenizer"], defaults: LLAMA, make: Some(llama), reads_pairs: false, ..PLAIN
    },
    Class { names: &["GemmaTokenizer"], defaults: GEMMA, make: Some(gemma), reads_pairs: false, ..PLAIN },
    Class {
        names: &[
            "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer",
            "LayoutLMTokenizer", "LxmertTokenizer", "SqueezeBertTokenizer",
        ],
        kind: "WordPiece", defaults: BERT, make: Some(bert_pieces), frame: Frame::Roles("BertProcessing", CLS), ..WHOLE
    },
    Class {
        names: &["AlbertTokenizer"], kind: "Unigram",
        defaults: ["[CLS]", "[SEP]", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]"], make: Some(albert),
        frame: Frame::GivenOrBerts, ..WHOLE
    },
    Class {
        names: &["CamembertTokenizer"], kind: "Unigram", defaults: ROBERTA, make: Some(camembert),
        frame: Frame::Roles("RobertaProcessing", ["bos_token", "eos_token"]), ..WHOLE
    },
    Class {
        names: &["XLMRobertaTokenizer"], kind: "Unigram", defaults: ROBERTA, make: Some(xlm_roberta),
        frame: Frame::Roles("RobertaProcessing", ["bos_token", "eos_token"]), ..WHOLE
    },
];

/// The classes of models whose files name none, or name one that is not believed. For all others tokenizer.json is
/// taken as it stands.
const MODELS: &[(&str, &[&str])] = &[
    ("GPT2Tokenizer", &["gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2", "codegen"]),
    ("RobertaTokenizer", &["roberta", "roberta-prelayernorm", "longformer", "bart"]),
    ("Qwen2Tokenizer", &["qwen2", "qwen3", "qwen2_moe", "qwen3_moe"]),
    ("GPTNeoXTokenizer", &["gpt_neox", "mpt", "olmo"]),
    ("CohereTokenizer", &["cohere", "cohere2"]),
    ("OpenAIGPTTokenizer", &["openai-gpt"]),
    ("GemmaTokenizer", &["gemma", "gemma2", "gemma3", "gemma3_text"]),
    ("BertTokenizer", &["bert", "distilbert", "electra", "ernie", "nomic_bert"]),
    ("MobileBertTokenizer", &["mobilebert"]),
    ("AlbertTokenizer", &["albert"]),
    ("CamembertTokenizer", &["camembert"]),
    ("XLMRobertaTokenizer", &["xlm-roberta"]),
    (
        "TokenizersBackend",
        &[
            "ernie4_5",
            "glm",
            "glm4",
            "gpt_bigcode",
            "granite",
            "ministral",
            "mistral",
            "modernbert",
            "olmo2",
            "olmo3",
            "persimmon",
            "phi3",
            "stablelm",
            "xlm-roberta-xl",
        ],
    ),
];

/// Models whose files name the wrong class.
const DISBELIEVED: [&str; 4] = ["ernie4_5", "modernbert", "phi3", "qwen2"];

fn named(name: &str) -> Option<&'static Class> {
    CLASSES.iter().find(|class| class.names.contains(&name))
}

/// The class of a folder's tokenizer: by the name in its files, by its model, or both. `is_byte_level` says whether
/// tokenizer.json has bytes for letters, which a Llama's has not. None if nothing names a class.
pub(super) fn choose(beside: &TokenizerFiles, is_byte_level: bool) -> Option<&'static Class> {
    let model = beside.model_type.as_deref().unwrap_or_default();
    let usual = MODELS.iter().find(|(_, models)| models.contains(&model)).map(|(class, _)| *class);
    let disbelieved = DISBELIEVED.contains(&model);
    let own = beside.class.as_deref().map(|name| name.strip_suffix("Fast").unwrap_or(name));
    let class = match (own, usual) {
        (Some("LlamaTokenizer"), _) if is_byte_level && !disbelieved => WHOLE.names[0],
        (Some(own), Some(usual)) if own != usual && (disbelieved || usual == WHOLE.names[0]) => usual,
        (Some(own), _) => own,
        (None, usual) => usual?,
    };
    Some(named(class).unwrap_or(&WHOLE))
}

impl Class {
    /// Whether it takes tokenizer.json as it stands.
    pub(super) fn is_whole(&self) -> bool {
        self.make.is_none()
    }

    /// The name of the token of a role, where no file names it.
    pub(super) fn default(&self, role: &str) -> Option<&'static str> {
        let place = ROLES.iter().position(|known| *known == role)?;
        Some(self.defaults[place]).filter(|name| !name.is_empty())
    }

    /// The same as a token.
    pub(super) fn token(&self, role: &str) -> Option<Added> {
        let mut token = Added::new(0, self.default(role)?, true);
        token.lstrip = role == "mask_token" && self.names[0] == "CamembertTokenizer";
        Some(token)
    }

    /// Makes the class's tokenizer of `spec`, a tokenizer.json (`whole`) or no more than a vocabulary. Says whether it
    /// is another then.
    pub(super) fn make(&self, spec: &mut Spec, beside: &TokenizerFiles, whole: bool) -> Result<bool, TokenizerError> {
        let class = if whole && spec.kind() != self.kind { &WHOLE } else { self };
        let before = meaning(spec)?;
        if let Some(make) = class.make {
            let Spec { model, normalizer, pre_tokenizer, decoder, .. } = make(spec, beside, class);
            let Model { r#type, vocab, merges, .. } = std::mem::take(&mut spec.model);
            spec.model = Model { r#type, vocab, merges, ..model };
            (spec.normalizer, spec.pre_tokenizer, spec.decoder) = (normalizer, pre_tokenizer, decoder);
        }
        let own = std::mem::take(&mut spec.added_tokens);
        let vocab = spec.model.vocab.pairs();
        let added = beside.tokens(&vocab, own, class)?;
        let id = |name: &str| {
            let own = added.iter().find(|token| token.content == name).map(|token| token.id);
            own.or_else(|| vocab.iter().find(|(token, _)| *token == name).map(|(_, id)| *id)).map(|id| id as u32)
        };
        let token = |role: &'static str| -> Result<Option<(u32, &str)>, TokenizerError> {
            let Some(name) = beside.role(role, class) else { return Ok(None) };
            let lacking = || part(role, "a token of the vocabulary", super::error::shown(name));
            Ok(Some((id(name).ok_or_else(lacking)?, name)))
        };
        let settings = &beside.settings;
        let asked = |role, ask: Option<bool>| if ask == Some(true) && !whole { token(role) } else { Ok(None) };
        let round = |kind: &str, [first, last]: [&'static str; 2]| -> Result<Value, TokenizerError> {
            let [cls, sep] = [token(first)?, token(last)?].map(|token| json!(token.map(|(id, name)| (name, id))));
            let mut step = json!({ "type": kind, "sep": sep, "cls": cls });
            if kind == "RobertaProcessing" {
                step["trim_offsets"] = true.into();
                step["add_prefix_space"] = (settings.add_prefix_space == Some(true)).into();
            }
            Ok(step)
        };
        let given = whole && !spec.post_processor.is_null();
        spec.post_processor = match class.frame {
            Frame::Given | Frame::GivenOrBerts if given => std::mem::take(&mut spec.post_processor),
            Frame::GivenOrBerts => round("BertProcessing", CLS)?,
            Frame::Roles(kind, roles) => round(kind, roles)?,
            Frame::Given | Frame::Asked => {
                framed(asked("bos_token", settings.add_bos_token)?, asked("eos_token", settings.add_eos_token)?)
            }
        };
        spec.added_tokens = added;
        Ok(meaning(spec)? != before)
    }
}

/// Bytes as GPT-2's letters.
fn letters(beside: &TokenizerFiles, mut pre_tokenizer: Value) -> Spec {
    let steps = pre_tokenizer.get_mut("pretokenizers").and_then(Value::as_array_mut);
    let last = match steps.and_then(|steps| steps.last_mut()) {
        Some(step) => step,
        None => &mut pre_tokenizer,
    };
    last["add_prefix_space"] = (beside.settings.add_prefix_space == Some(true)).into();
    Spec { pre_tokenizer, decoder: byte_level(true), ..Spec::default() }
}

/// The same of text in NFC.
fn composed(beside: &TokenizerFiles, pre_tokenizer: Value) -> Spec {
    Spec { normalizer: json!({ "type": "NFC" }), ..letters(beside, pre_tokenizer) }
}

fn gpt2(_: &Spec, beside: &TokenizerFiles, _: &Class) -> Spec {
    letters(beside, cutting(Split::Gpt2))
}

fn gpt_neox(_: &Spec, beside: &TokenizerFiles, _: &Class) -> Spec {
    composed(beside, cutting(Split::Gpt2))
}

fn qwen2(_: &Spec, beside: &TokenizerFiles, _: &Class) -> Spec {
    composed(beside, cutting(Split::Qwen2))
}

fn cohere(_: &Spec, beside: &TokenizerFiles, _: &Class) -> Spec {
    let digits = json!({ "type": "Digits", "individual_digits": true });
    composed(beside, json!({ "type": "Sequence", "pretokenizers": [digits, byte_level(true)] }))
}

fn openai_gpt(_: &Spec, beside: &TokenizerFiles, class: &Class) -> Spec {
    let unk_token = beside.role("unk_token", class).map(String::from);
    let model = Model { end_of_word_suffix: Some("</w>".into()), unk_token, ..Model::default() };
    let decoder = json!({ "type": "BPEDecoder", "suffix": "</w>" });
    Spec { model, decoder, ..word_pieces(None, bert_normalizer(true, None, true)) }
}

fn llama(_: &Spec, beside: &TokenizerFiles, _: &Class) -> Spec {
    let (prefix, always) = (beside.settings.add_prefix_space != Some(false), beside.settings.legacy == Some(true));
    let scheme = if !prefix {
        "never"
    } else if always {
        "always"
    } else {
        "first"
    };
    let model = Model { fuse_unk: Some(true), byte_fallback: Some(true), ..Model::default() };
    let pre_tokenizer = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false });
    Spec { model, pre_tokenizer, decoder: blanks(prefix), ..Spec::default() }
}

fn gemma(_: &Spec, beside: &TokenizerFiles, class: &Class) -> Spec {
    let unk_token = beside.role("unk_token", class).map(String::from);
    Spec {
        model: Model { fuse_unk: Some(true), byte_fallback: Some(true), unk_token, ..Model::default() },
        normalizer: replace(" ", "▁"),
        pre_tokenizer: json!({
            "type": "Split", "pattern": { "String": " " }, "behavior": "MergedWithPrevious", "invert": false
        }),
        decoder: blanks(false),
        ..Spec::default()
    }
}

fn bert_pieces(_: &Spec, beside: &TokenizerFiles, class: &Class) -> Spec {
    let settings = &beside.settings;
    let (chinese, lowercase) =
        (settings.tokenize_chinese_chars.unwrap_or(true), settings.do_lower_case.unwrap_or(true));
    let unk_token = beside.role("unk_token", class).map(String::from);
    word_pieces(unk_token, bert_normalizer(chinese, settings.strip_accents, lowercase))
}

/// The class of vocab.json and merges.txt whose files name none.
pub(super) fn pairs(words: bool) -> &'static Class {
    named(if words { "OpenAIGPTTokenizer" } else { "GPT2Tokenizer" }).unwrap_or(&WHOLE)
}

/// The class of a vocab.txt.
pub(super) fn bert() -> &'static Class {
    named("BertTokenizer").unwrap_or(&WHOLE)
}

/// SentencePiece's pieces of words, with `unknown` for what they lack.
fn unigram(beside: &TokenizerFiles, normalizer: Option<Value>, unknown: usize) -> Spec {
    let scheme = if beside.settings.add_prefix_space == Some(false) { "never" } else { "always" };
    let marks = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true });
    Spec {
        model: Model { unk_id: Some(unknown), byte_fallback: Some(false), ..Model::default() },
        normalizer: normalizer.unwrap_or_default(),
        pre_tokenizer: json!({ "type": "Sequence", "pretokenizers": [{ "type": "WhitespaceSplit" }, marks] }),
        decoder: marks,
        ..Spec::default()
    }
}

/// SentencePiece's map of characters, if tokenizer.json has one.
fn charsmap(spec: &Spec) -> Option<Value> {
    let steps = steps("the normalizer", &spec.normalizer).ok()?;
    steps.into_iter().find(|(kind, _)| *kind == "Precompiled").map(|(_, step)| step.clone())
}

fn xlm_roberta(spec: &Spec, beside: &TokenizerFiles, _: &Class) -> Spec {
    unigram(beside, charsmap(spec), 3)
}

fn camembert(spec: &Spec, beside: &TokenizerFiles, class: &Class) -> Spec {
    let name = beside.role("unk_token", class).unwrap_or_default();
    let unknown = match &spec.model.vocab {
        Vocab::Scores(list) => list.iter().position(|(token, _)| token == name).unwrap_or(0),
        Vocab::Ids(_) => 0,
    };
    unigram(beside, charsmap(spec), unknown)
}

fn albert(spec: &Spec, beside: &TokenizerFiles, _: &Class) -> Spec {
    let mut steps = vec![replace("``", "\""), replace("''", "\"")];
    if beside.settings.keep_accents != Some(true) {
        steps.extend(["NFKD", "StripAccents"].map(|kind| json!({ "type": kind })));
    }
    if beside.settings.do_lower_case != Some(false) {
        steps.push(json!({ "type": "Lowercase" }));
    }
    steps.extend(charsmap(spec));
    unigram(beside, Some(json!({ "type": "Sequence", "normalizers": steps })), 1)
}

impl TokenizerFiles {
    /// The token of a role, which the files or else the class name.
    pub(super) fn role<'a>(&'a self, role: &str, class: &Class) -> Option<&'a str> {
        match self.roles.get(role) {
            Some(token) => content(token),
            None => class.default(role),
        }
    }

    /// The roles and their tokens: what chat templates write by name.
    pub(super) fn names(&self, class: &Class) -> Vec<(String, String)> {
        let roles = ROLES.iter().filter_map(|role| Some((role.to_string(), self.role(role, class)?.to_string())));
        let more = self.more.iter().filter_map(|(role, token)| Some((role.clone(), content(token)?.to_string())));
        roles.chain(more).collect()
    }

    /// The tokens that are looked for before others, from `own`, those of tokenizer.json, and what the files and the
    /// class name. A token that the vocabulary has keeps its id there, others get the next, whatever id a file gives
    /// them; a token for which the model has no row is left out.
    pub(super) fn tokens(
        &self,
        vocab: &[(&str, u64)],
        own: Vec<Added>,
        class: &Class,
    ) -> Result<Vec<Added>, TokenizerError> {
        let listed = self.decoder.clone().unwrap_or_else(|| {
            let mut listed = self.added.clone();
            listed.extend(own.iter().map(|token| (token.id, token.clone())));
            listed
        });
        let have = if class.is_whole() { own } else { vec![] };
        let by_text: HashMap<&str, &Added> = have.iter().map(|token| (token.content.as_str(), token)).collect();
        let is_there = |token: &&Added| by_text.get(token.content.as_str()).is_some_and(|own| is_same(own, token));
        let mut add: Vec<Added> = listed.values().filter(|token| !is_there(token)).cloned().collect();
        let known: HashSet<String> = have.iter().chain(&add).map(|token| token.content.clone()).collect();
        let mut named: Vec<Added> = vec![];
        for role in ROLES {
            named.extend(match self.roles.get(role) {
                Some(token) if token.is_null() => None,
                Some(token) => Some(special(token)?),
                None => class.token(role),
            });
        }
        let more = self.more.iter().map(|(_, token)| token);
        named.extend(more.map(special).collect::<Result<Vec<_>, _>>()?);
        add.iter_mut().for_each(|token| token.special |= named.iter().any(|named| named.content == token.content));
        let extra = self.extra.iter().map(special).collect::<Result<Vec<_>, _>>()?;
        let lacking = named.iter().chain(&extra).filter(|token| !known.contains(&token.content));
        add.extend(lacking.cloned());
        if class.restores_specials {
            add.extend(named.iter().chain(&extra).map(|token| Added::new(0, &token.content, true)));
        }
        let mut set = TokenSet::new(vocab, have);
        add.into_iter().for_each(|token| set.add(token, self.rows));
        Ok(set.tokens.into_values().collect())
    }
}

/// Added tokens as HuggingFace's crate numbers them.
struct TokenSet<'a> {
    vocab: HashMap<&'a str, u64>,
    /// The ids of the vocabulary: where it has gaps, one may be the next.
    used: HashSet<u64>,
    /// By id.
    tokens: BTreeMap<u64, Added>,
    ids: HashMap<String, u64>,
    next: u64,
}

impl<'a> TokenSet<'a> {
    fn new(vocab: &[(&'a str, u64)], have: Vec<Added>) -> TokenSet<'a> {
        let last = have.iter().map(|token| token.id).max();
        TokenSet {
            next: (vocab.len() as u64).max(last.map_or(0, |last| last.saturating_add(1))),
            vocab: vocab.iter().copied().collect(),
            used: vocab.iter().map(|(_, id)| *id).collect(),
            ids: have.iter().map(|token| (token.content.clone(), token.id)).collect(),
            tokens: have.into_iter().map(|token| (token.id, token)).collect(),
        }
    }

    fn add(&mut self, token: Added, rows: Option<u64>) {
        let known = self.ids.get(&token.content).or(self.vocab.get(token.content.as_str())).copied();
        let id = known.unwrap_or(self.next);
        let beyond = rows.is_some_and(|rows| id >= rows) || self.used.contains(&id);
        if token.content.is_empty() || known.is_none() && beyond {
            return;
        }
        self.next += u64::from(known.is_none());
        self.ids.insert(token.content.clone(), id);
        self.tokens.insert(id, Added { id, ..token });
    }
}
