//! Small models to serve, and numbers that look like chance.

use limpid::config::Config;
use limpid::data::chat;
use limpid::data::template::{ChatTemplate, TemplateTokens};
use limpid::tokenizer::Tokenizer;
use limpid::train::Recipe;
use limpid::{Lm, Training};
use limpid_serve::ServedModel;
use limpid_serve::refusal::Refusal;
use serde_json::Value;
use std::sync::{Arc, LazyLock};

/// Positions of every model here.
pub const CONTEXT: usize = 64;

fn trained(tokenizer: &str, context: usize) -> Lm {
    let config = Config {
        context_length: context,
        d_model: 16,
        n_head: 2,
        n_layer: 1,
        d_ff: 32,
        ..Config::preset("nano").unwrap()
    };
    let recipe = Recipe { steps: 1, batch_size: 1, context: 16, ..Recipe::default() };
    let text = "to be or not to be, that is the question.\n".repeat(20);
    let training = Training::new(config, recipe).text(text).tokenizer(tokenizer).machine(limpid::Machine::cpu(1));
    training.run().unwrap().lm
}

pub fn served(tokenizer: &str, template: Option<&str>) -> Arc<ServedModel> {
    serving(trained(tokenizer, CONTEXT), template)
}

/// A model of GPT-2's tokens with a longer context, and this chat template.
pub fn talker(template: &str) -> Arc<ServedModel> {
    serving(trained("gpt2", 512), Some(template))
}

/// A model with this tokenizer, which fits the model's vocabulary.
pub fn tokenized(tokenizer: Tokenizer) -> Arc<ServedModel> {
    serving(trained("gpt2", CONTEXT).with_tokenizer(tokenizer).unwrap(), None)
}

fn serving(lm: Lm, template: Option<&str>) -> Arc<ServedModel> {
    let tokens = TemplateTokens::new(lm.tokenizer().unwrap());
    Arc::new(ServedModel {
        id: "M".into(),
        created: 1_795_000_000,
        step: Some(1),
        fingerprint: "limpid-9c41d2aa-s1".into(),
        template: template.map(|source| ChatTemplate::new(source, tokens).unwrap()),
        lm: Arc::new(lm),
    })
}

/// GPT-2's tokens, whose characters may be split, and limpid's own chat template.
pub fn gpt2() -> Arc<ServedModel> {
    static MODEL: LazyLock<Arc<ServedModel>> = LazyLock::new(|| {
        let tokenizer = limpid::tokenizer::Tokenizer::named("gpt2").unwrap();
        served("gpt2", Some(&chat::template(&tokenizer)))
    });
    MODEL.clone()
}

/// Characters, and no chat template.
pub fn chars() -> Arc<ServedModel> {
    static MODEL: LazyLock<Arc<ServedModel>> = LazyLock::new(|| served("char", None));
    MODEL.clone()
}

/// What an endpoint makes of a body, apart from the requests themselves.
pub fn post(model: &ServedModel, path: &str, body: &[u8]) -> Result<Value, Refusal> {
    use limpid_serve::{embeddings, openai, tokens};
    match path {
        "/v1/completions" => openai::completions(model, body).map(|_| Value::Null),
        "/v1/chat/completions" => openai::chat(model, body).map(|_| Value::Null),
        "/v1/embeddings" => embeddings::embeddings(model, body, &|| false),
        "/tokenize" => tokens::tokenize(model, body),
        "/detokenize" => tokens::detokenize(model, body),
        "/apply-template" => tokens::apply_template(model, body),
        other => panic!("{other}"),
    }
}

/// Numbers that look like chance (xorshift).
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}
