//! What comes over a socket: who may ask and how, limits, and requests that are none.

use crate::common::{self, CONTEXT, Client, Running, options, serve};
use limpid::checkpoint::Checkpoint;
use limpid_serve::{
    ConnectionLimits, PageOptions, ServeError, ServeEvent, ServeOptions, ServedAs, ServedModel, Server,
};
use serde_json::json;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A request with these headers, `Host` among them.
fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\n{headers}\r\n")
}

#[test]
fn every_path_has_its_methods() {
    let server = serve(options());
    let gets = [
        "/",
        "/docs",
        "/health",
        "/metrics",
        "/openapi.json",
        "/ready",
        "/tokenizer_info",
        "/v1/models",
        "/v1/models/m",
    ];
    for path in gets {
        let reply = server.get(path);
        assert_eq!(reply.status, 200, "{path}");
        let mut client = server.connect();
        let head = client.ask(&format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        let kind = |reply: &common::Reply| reply.header("content-type").unwrap().to_string();
        assert_eq!((head.status, kind(&head)), (200, kind(&reply)), "{path}");
        // nothing came after the head, so the next answer begins there
        assert_eq!(client.ask(&get("/health", "Host: localhost\r\n")).status, 200);
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "FROB"] {
            let reply = server.connect().ask(&format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            let found = (reply.status, reply.code(), reply.header("allow").map(String::from));
            assert_eq!(found, (405, "method_not_allowed".into(), Some("GET, HEAD".into())), "{method} {path}");
        }
    }
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize"] {
        let reply = server.get(path);
        let found = (reply.status, reply.code(), reply.header("allow").map(String::from));
        assert_eq!(found, (405, "method_not_allowed".into(), Some("POST".into())), "{path}");
        let reply = server.post(path, &json!({}));
        assert_eq!((reply.status, reply.code()), (400, "missing_field".into()), "{path}");
    }
    for path in ["/v1", "/v1/", "/v1/models/", "/v1/completions/", "/HEALTH", "//health", "/../health", "/ui/../../etc"]
    {
        let reply = server.get(path);
        assert_eq!((reply.status, reply.code()), (404, "not_found".into()), "{path}");
    }
    let reply = server.get("/v1/models/other%20one%zz%");
    assert_eq!((reply.status, reply.code()), (404, "model_not_found".into()));
    assert!(reply.text().contains("other one%zz%"), "{}", reply.text());
    assert_eq!(serve(ServeOptions { page: PageOptions::Off, ..options() }).get("/").status, 404);
}

#[test]
fn what_is_wrong_with_a_look_inside_has_its_code() {
    let server = serve(options());
    let lines = server.post("/inspect/v1/traces", &json!({ "prompt": "to be or not" })).text();
    let start: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let id = start["id"].as_str().unwrap();
    assert!(lines.lines().last().unwrap().contains("\"done\""), "{lines:.300}");
    for (question, status, code) in [
        ("tensors", 200, ""),
        ("tensors/logits?at=0,11,*", 200, ""),
        ("tensors/blocks.1.attn.hook_pattern?at=0,0,*,*&other=", 404, "trace_expired"),
        ("tensors/blocks.1.attn.hook_patern", 404, "unknown_tensor"),
        ("tensors/blocks.9.attn.hook_pattern", 404, "unknown_tensor"),
        ("tensors/cos(cos(hook_embed", 404, "unknown_tensor"),
        ("tensors/cos(hook_embed)?at=0,3,4", 200, ""),
        ("tensors/cos(cos(hook_embed))?at=0,0,0", 400, "invalid_value"),
        ("tensors/cos(ln_final.weight)", 400, "invalid_value"),
        ("tensors/cos(ln_final.weight)?at=0,0", 400, "invalid_value"),
        ("tensors/logits?at=0,11,*&at=0,10,*", 400, "invalid_value"),
        ("tensors/logits?at=0,0,0&stats=yes", 400, "invalid_value"),
        ("tensors/logits?at=0,0,0&stats=false", 200, ""),
        ("explain/logits?at=0,,0,0", 400, "invalid_value"),
        ("tensors/logits?at=0,12,0", 400, "index_out_of_range"),
        ("tensors/logits?at=0,1:99999999999999999999,0", 400, "index_out_of_range"),
        ("tensors/logits?at=0", 400, "invalid_value"),
        ("tensors/logits?att=0", 400, "unknown_parameter"),
        ("tensors?at=0", 400, "unknown_parameter"),
        ("tensors/logits?format=exe", 400, "invalid_value"),
        ("explain/logits?at=0,0,99999", 400, "index_out_of_range"),
        ("explain/logits?at=-1,0,0", 400, "invalid_value"),
        ("explain/nothing?at=0", 404, "unknown_tensor"),
        ("lens?positions=12", 400, "index_out_of_range"),
        ("attribution?position=12", 400, "invalid_value"),
        ("path?via=h9.9", 400, "index_out_of_range"),
        ("path?via=x", 400, "invalid_value"),
        ("gradients?position=12", 400, "invalid_value"),
        ("gradients?foil=some", 400, "invalid_value"),
        ("gradients?via=h0.0", 400, "unknown_parameter"),
        ("path?word=no+such+word", 400, "invalid_value"),
        ("path?word=a&target=1", 400, "invalid_value"),
        ("attribution?position=1&unit=soul", 400, "invalid_value"),
        ("mlp?layer=2&position=0", 400, "invalid_value"),
        ("predictions?position=12", 400, "invalid_value"),
        ("why", 404, "not_found"),
    ] {
        let reply = server.get(&format!("/inspect/v1/traces/{id}/{question}"));
        let found = (reply.status, if reply.status == 200 { String::new() } else { reply.code() });
        assert_eq!(found, (status, code.into()), "{question}: {:.300}", reply.text());
    }
    for (path, body, code) in [
        ("traces", json!({ "prompt": "" }), "empty_prompt"),
        ("traces", json!({ "prompt": "to be ".repeat(CONTEXT) }), "prompt_too_long"),
        ("traces", json!({ "prompt": "é" }), "invalid_value"),
        ("traces", json!({ "tokens": [0, 999] }), "token_out_of_range"),
        ("traces", json!({ "prompt": "a", "model": "other" }), "model_not_found"),
        ("traces", json!({ "prompt": "a", "model": 3 }), "invalid_value"),
        ("traces", json!({ "prompt": "a", "last": "yes" }), "invalid_value"),
        ("traces", json!({ "prompt": ["a"] }), "invalid_value"),
        ("traces", json!({ "prompt": "a", "tokens": [1] }), "invalid_value"),
        ("traces", json!({ "tokens": "1" }), "invalid_value"),
        ("walks", json!({ "walk": "s0", "own": 1 }), "invalid_value"),
        ("walks", json!({ "walk": 0 }), "invalid_value"),
        ("traces", json!({ "prompt": "a", "promt": 1 }), "unknown_parameter"),
        ("traces", json!({}), "invalid_value"),
        ("traces", json!([]), "invalid_json"),
        ("walks", json!({ "walk": "s9" }), "invalid_value"),
        ("sweeps", json!({}), "invalid_value"),
        ("sweeps", json!({ "clean": "to be", "corrupt": 5 }), "invalid_value"),
        ("sweeps", json!({ "clean": "to be", "corrupt": "to be or not" }), "invalid_value"),
        ("sweeps", json!({ "clean": "", "corrupt": "" }), "empty_prompt"),
        ("sweeps", json!({ "clean": [0, 999], "corrupt": [0, 1] }), "token_out_of_range"),
        ("sweeps", json!({ "clean": vec![1; CONTEXT + 1], "corrupt": vec![2; CONTEXT + 1] }), "prompt_too_long"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "site": "resid" }), "invalid_value"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "by": "pair" }), "invalid_value"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "position": 2 }), "invalid_value"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "position": -3 }), "invalid_value"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "answer": 999 }), "invalid_value"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "answer": 1, "foil": 1 }), "invalid_value"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "foil": 1 }), "invalid_value"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "metric": "loss", "answer": 1 }), "invalid_value"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "confirm": "yes" }), "invalid_value"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "cleen": 1 }), "unknown_parameter"),
        ("reasons", json!({}), "invalid_value"),
        ("reasons", json!({ "clean": [1, 2], "answer": 1, "foil": 1 }), "invalid_value"),
        ("reasons", json!({ "clean": [1, 2], "corrupt": [1, 2, 3] }), "invalid_value"),
        ("reasons", json!({ "clean": [1, 2], "position": 2 }), "invalid_value"),
        ("reasons", json!({ "clean": [1, 2], "why": 1 }), "unknown_parameter"),
        ("sweeps", json!({ "clean": [1, 2], "corrupt": [1, 3], "model": "other" }), "model_not_found"),
        (
            "sweeps",
            json!({ "clean": vec![1; CONTEXT / 4], "corrupt": vec![2; CONTEXT / 4], "site": "pattern", "by": "pair" }),
            "sweep_too_large",
        ),
        // too many cells to hold, whoever confirms it
        (
            "sweeps",
            json!({ "clean": vec![1; CONTEXT], "corrupt": vec![2; CONTEXT], "site": "pattern", "by": "pair",
            "confirm": true }),
            "invalid_value",
        ),
        ("traces/gone/tiles", json!({ "tiles": [] }), "trace_expired"),
        ("traces/gone/nothing", json!({}), "not_found"),
    ] {
        let reply = server.post(&format!("/inspect/v1/{path}"), &body);
        assert_ne!(reply.status, 200, "{path} {:.80}", body.to_string());
        assert_eq!(reply.code(), code, "{path} {:.80}: {:.300}", body.to_string(), reply.text());
    }
    // a key that is there twice, and every field of a tile
    let twice = r#"{"prompt":"a","prompt":"b"}"#;
    let head = "POST /inspect/v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let reply = server.connect().ask(&format!("{head}Content-Length: {}\r\n\r\n{twice}", twice.len()));
    assert_eq!((reply.status, reply.code()), (400, "invalid_json".into()));
    let tile = json!({ "name": "hook_embed", "index": [0], "tile": [0, 0], "level": 0, "pool": "max", "code": "f32" });
    for (field, value, code) in [
        ("level", json!("0"), "invalid_value"),
        ("level", json!(13), "invalid_value"),
        ("level", json!(-1), "invalid_value"),
        ("other", json!(5), "invalid_value"),
        ("index", json!("0"), "invalid_value"),
        ("tile", json!([0]), "invalid_value"),
        ("tile", json!([0, 1]), "index_out_of_range"),
        ("pool", json!(null), "invalid_value"),
        ("code", json!("f64"), "invalid_value"),
        ("name", json!(7), "invalid_value"),
        ("name", json!("cos(ln_final.weight)"), "invalid_value"),
        ("size", json!(7), "unknown_parameter"),
    ] {
        let mut tile = tile.clone();
        tile[field] = value;
        let reply = server.post(&format!("/inspect/v1/traces/{id}/tiles"), &json!({ "tiles": [tile] }));
        assert_eq!((reply.status, reply.code()), (400, code.into()), "{tile}: {}", reply.text());
    }
    for path in ["model?x=1", "walks?at=0", "traces?k=1"] {
        let reply = server.get(&format!("/inspect/v1/{path}"));
        assert_eq!((reply.status, reply.code()), (400, "unknown_parameter".into()), "{path}");
    }
    let forget = format!("DELETE /inspect/v1/traces/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(server.connect().ask(&forget).status, 200);
    assert_eq!(server.connect().ask(&forget).code(), "trace_expired");
    assert_eq!(server.get(&format!("/inspect/v1/traces/{id}/tensors")).code(), "trace_expired");
    server.lives();
    let small = serve(ServeOptions { inspect: Some(10_000), ..options() });
    assert_eq!(small.post("/inspect/v1/traces", &json!({ "prompt": "to be" })).code(), "too_large");
    // an answer that takes longer than it may says so, of tiles too
    let hurried = serve(ServeOptions { look_time: Duration::ZERO, ..options() });
    assert!(hurried.post("/inspect/v1/traces", &json!({ "prompt": "to be or not" })).text().contains("\"done\""));
    let late = hurried.get(&format!("/inspect/v1/traces/{id}/tensors/cos(embed.weight)"));
    assert_eq!((late.status, late.code()), (400, "out_of_time".into()));
    let late = hurried.post(&format!("/inspect/v1/traces/{id}/tiles"), &json!({ "tiles": [tile] }));
    assert_eq!((late.status, late.code()), (400, "out_of_time".into()));
    let closed = serve(ServeOptions { inspect: None, ..options() });
    assert_eq!(closed.post("/inspect/v1/traces", &json!({ "prompt": "to be" })).code(), "inspect_disabled");
    assert_eq!(closed.get("/inspect/v1/model").code(), "inspect_disabled");
    let alone = serve(ServeOptions { look_only: true, ..options() });
    assert_eq!(alone.post("/v1/completions", &json!({ "prompt": "to be" })).code(), "not_for_this_model");
    assert!(alone.post("/inspect/v1/traces", &json!({ "prompt": "to be" })).text().contains("\"done\""));
}

#[test]
fn only_its_own_names_are_answered() {
    let server = serve(ServeOptions { allow_hosts: vec!["Box.example".into()], ..options() });
    let port = server.address.port();
    let ours = [
        "localhost",
        "LocalHost:1",
        "127.0.0.1",
        &format!("127.0.0.1:{port}"),
        "[::1]",
        "[::1]:65535",
        "box.example",
        "BOX.example:8080",
        "localhost:",
    ];
    for host in ours {
        assert_eq!(server.connect().ask(&get("/v1/models", &format!("Host: {host}\r\n"))).status, 200, "{host}");
    }
    let others = [
        "",
        "evil.example",
        "localhost.evil.example",
        "evil-localhost",
        "localhost.",
        "localhost:80a",
        "localhost:65536",
        "localhost:1:2",
        "127.0.0.1.evil.example",
        "127.0.0.2",
        "::1",
        "[::1",
        "[::1]x",
        "0.0.0.0",
        "box.example.org",
        "user@localhost",
    ];
    for host in others {
        let reply = server.connect().ask(&get("/v1/models", &format!("Host: {host}\r\n")));
        assert_eq!((reply.status, reply.code()), (403, "host_not_allowed".into()), "{host:?}");
        let probe = server.connect().ask(&get("/health", &format!("Host: {host}\r\n")));
        assert_eq!(probe.status, 200, "who only asks whether it lives may call it anything: {host:?}");
    }
    let said = server.connect().ask(&get("/v1/models", "Host: gpu:8080\r\n")).text();
    assert!(said.contains("--allow-host gpu to"), "{said}");
    for headers in ["", "Host: localhost\r\nHost: evil.example\r\n", "Host: localhost\r\nHost: localhost\r\n"] {
        let reply = server.connect().ask(&get("/v1/models", headers));
        assert_eq!(reply.status, 403, "{headers:?}");
    }
    // the name in the request line counts too
    let line = |name: &str| format!("GET http://{name}/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(server.connect().ask(&line("evil.example")).status, 403);
    assert_eq!(server.connect().ask(&line("localhost")).status, 200);
}

/// What --allow-host and --cors-origin take, and that what they take can be said by a request.
#[test]
fn names_are_taken_as_headers_have_them_or_refused() {
    let ask = |server: &Running, headers: &str| server.connect().ask(&get("/v1/models", headers)).status;
    let names = ["gpu:8080", "Box.example", "::2", "[::3]:9"].map(String::from).to_vec();
    let origins = ["https://Friend.example/", "http://[::1]:3000"].map(String::from).to_vec();
    let server = serve(ServeOptions { allow_hosts: names, cors_origins: origins, ..options() });
    for host in ["gpu", "gpu:1", "box.example", "[::2]", "[::3]"] {
        assert_eq!(ask(&server, &format!("Host: {host}\r\n")), 200, "{host}");
    }
    for origin in ["https://friend.example", "http://[::1]:3000"] {
        assert_eq!(ask(&server, &format!("Host: localhost\r\nOrigin: {origin}\r\n")), 200, "{origin}");
    }
    let refused = |options: ServeOptions| {
        let model = ServedModel::new(Checkpoint::open(common::folder()).unwrap(), &common::how()).unwrap();
        Server::start(model, options, None, Box::new(|_| {})).err().map(|error| error.to_string()).unwrap_or_default()
    };
    for name in ["", "*", "http://foo", "a b", "a/b", "[::1", ":80"] {
        let said = refused(ServeOptions { allow_hosts: vec![name.into()], ..options() });
        assert!(said.contains(&format!("host to allow, `{name}`")), "{name}: {said}");
    }
    for origin in [
        "",
        "friend.example",
        "https://",
        "https://friend.example/page",
        "app:",
        "://a",
        "1a://b",
        "a b://c",
        "app://a b",
        "app://a/b",
    ] {
        let said = refused(ServeOptions { cors_origins: vec![origin.into()], ..options() });
        assert!(said.contains(&format!("origin to allow, `{origin}`")), "{origin}: {said}");
    }
    let unnamed = ServedAs { id: String::new(), ..common::how() };
    let unnamed = ServedModel::new(Checkpoint::open(common::folder()).unwrap(), &unnamed).unwrap();
    assert!(matches!(Server::start(unnamed, options(), None, Box::new(|_| {})), Err(ServeError::Unnamed)));
    // open to other machines, which reach it by its addresses
    let open = serve(ServeOptions { host: "0.0.0.0".into(), no_auth: true, ..options() });
    for (host, status) in
        [("192.168.1.5", 200), ("[fe80::1]:8080", 200), ("evil.example", 403), ("1.2.3.4.evil.example", 403)]
    {
        assert_eq!(ask(&open, &format!("Host: {host}\r\n")), status, "{host}");
    }
}

#[test]
fn pages_of_others_are_refused() {
    let server = serve(ServeOptions { cors_origins: vec!["https://friend.example".into()], ..options() });
    let port = server.address.port();
    let host = format!("Host: localhost:{port}\r\n");
    let own = [format!("http://localhost:{port}"), format!("https://localhost:{port}")];
    for origin in own {
        let reply = server.connect().ask(&get("/v1/models", &format!("{host}Origin: {origin}\r\n")));
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, None), "{origin}");
    }
    for origin in
        ["null", "", "http://evil.example", "http://localhost", "http://localhost:1", "https://friend.example.org"]
    {
        let reply = server.connect().ask(&get("/v1/models", &format!("{host}Origin: {origin}\r\n")));
        assert_eq!((reply.status, reply.code()), (403, "origin_not_allowed".into()), "{origin}");
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
    let friend = format!("{host}Origin: https://friend.example\r\n");
    let reply = server.connect().ask(&get("/v1/models", &friend));
    let found = (reply.status, reply.header("access-control-allow-origin"), reply.header("vary"));
    assert_eq!(found, (200, Some("https://friend.example"), Some("origin")));
    assert_eq!(reply.header("access-control-expose-headers"), Some("retry-after, x-request-id"));
    let asked = "Access-Control-Request-Headers: authorization, x-stainless-os\r\n";
    let reply = server.connect().ask(&format!("OPTIONS /v1/completions HTTP/1.1\r\n{friend}{asked}\r\n"));
    assert_eq!(reply.header("access-control-allow-headers"), Some("authorization, x-stainless-os"));
    let reply = server.connect().ask(&format!("OPTIONS /v1/completions HTTP/1.1\r\n{friend}\r\n"));
    assert_eq!((reply.status, reply.header("access-control-allow-methods")), (204, Some("GET, POST, DELETE")));
    assert_eq!(reply.header("access-control-allow-headers"), Some("authorization, content-type, x-request-id"));
}

/// Every origin that a browser sends is refused with the name that permits it, and permitted by that name; a page of a
/// public network may then reach the server, too.
#[test]
fn what_a_refusal_advises_permits_a_page() {
    let closed = serve(options());
    let ask = |server: &Running, request: &str, more: &str| {
        server.connect().ask(&format!("{request} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"))
    };
    let origins = [
        "null",
        "https://friend.example:8443",
        "http://[::1]:3000",
        "app://obsidian.md",
        "app://-",
        "file://",
        "tauri://localhost",
        "capacitor://localhost",
        "ionic://localhost",
        "chrome-extension://cjpalhdlnbpafiamejdnhcphjbkeiagm",
        "moz-extension://0b8a5e52-8ae5-4b1d-a9a6-6d2f8ee5a4d1",
        "safari-web-extension://E1A5D2C0-0B57-4C2F-9D3B-2F4C1C7D9E10",
        "vscode-file://vscode-app",
        "vscode-webview://1fjk2qg8l0uqv1b6d0v2m3n4p5r6s7t8u9v0a1b2c3d4e5f6g7h8",
    ];
    for origin in origins {
        let page = format!("Origin: {origin}\r\n");
        let refused = ask(&closed, "GET /v1/models", &page);
        assert_eq!((refused.status, refused.code()), (403, "origin_not_allowed".into()), "{origin}");
        let preflight =
            ask(&closed, "OPTIONS /v1/models", &format!("{page}Access-Control-Request-Private-Network: true\r\n"));
        assert_eq!(preflight.header("access-control-allow-private-network"), None, "{origin}");
        let said = refused.json()["error"]["message"].as_str().unwrap().to_string();
        let advice = said.split_once("--cors-origin ").and_then(|(_, rest)| rest.split_once(" to permit it"));
        let (advised, _) = advice.unwrap_or_else(|| panic!("{said}"));
        let open = serve(ServeOptions { cors_origins: vec![advised.into()], ..options() });
        let reply = ask(&open, "GET /v1/models", &page);
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some(origin)), "{advised}");
        let asked = format!("{page}Access-Control-Request-Method: POST\r\n");
        let preflight = ask(&open, "OPTIONS /v1/models", &asked);
        assert_eq!((preflight.status, preflight.header("access-control-allow-private-network")), (204, None));
        let preflight =
            ask(&open, "OPTIONS /v1/models", &format!("{asked}Access-Control-Request-Private-Network: true\r\n"));
        assert_eq!((preflight.status, preflight.header("access-control-allow-private-network")), (204, Some("true")));
        assert_eq!(ask(&open, "GET /v1/models", "Origin: https://other.example\r\n").status, 403);
    }
    // what no option permits is not advised
    for origin in
        ["*", "a b", "https://a/b", "https://é.example", "app://[x]", &format!("https://{}.example", "a".repeat(999))]
    {
        let refused = ask(&closed, "GET /v1/models", &format!("Origin: {origin}\r\n"));
        let text = refused.text();
        assert!(refused.status == 403 && !text.contains("--cors-origin") && text.len() < 300, "{text}");
    }
}

/// A body that is compressed is refused by the name of its coding; identity is none.
#[test]
fn a_body_must_be_sent_as_it_is() {
    let server = serve(options());
    let send = |headers: &str, body: &[u8]| {
        let head = format!("Content-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        let mut client = server.connect();
        client.send([format!("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{head}").as_bytes(), body].concat());
        client.reply(false).unwrap()
    };
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xabV*(\xca\xcf-(Q\xb2R*\xc9WHJU\xaa\x05\x00\xd8\xa8Oo\x12\x00\x00\x00";
    let json = br#"{"prompt":"to be"}"#;
    for coding in ["gzip", "GZip", "deflate", "br", "zstd", "x-gzip", "gzip, br", "identity\r\nContent-Encoding: gzip"]
    {
        let reply = send(&format!("Content-Encoding: {coding}\r\n"), gzip);
        assert_eq!((reply.status, reply.code()), (415, "unsupported_encoding".into()), "{coding}");
        assert_eq!(reply.header("accept-encoding"), Some("identity"));
        let name = coding.rsplit(": ").next().unwrap();
        assert!(reply.text().contains(&format!("Content-Encoding: {name}`")), "{}", reply.text());
    }
    for coding in ["identity", "Identity", ""] {
        assert_eq!(send(&format!("Content-Encoding: {coding}\r\n"), json).status, 200, "{coding}");
    }
    let unsaid = send("", gzip);
    assert!(unsaid.status == 400 && unsaid.text().contains("the body is compressed (gzip)"), "{}", unsaid.text());
}

#[test]
fn a_body_must_be_sent_as_json() {
    let server = serve(options());
    let send = |kind: &str| {
        let body = r#"{"prompt":"to be"}"#;
        let head = format!("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {}", body.len());
        server.connect().ask(&format!("{head}\r\n\r\n{body}"))
    };
    for kind in [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/json;charset=\"UTF-8\"",
        "application/json; profile=x",
    ] {
        assert_eq!(send(&format!("Content-Type: {kind}\r\n")).status, 200, "{kind}");
    }
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonp",
        "",
        "application/json; charset=utf-16",
    ] {
        let reply = send(&format!("Content-Type: {kind}\r\n"));
        assert_eq!((reply.status, reply.code()), (415, "unsupported_media_type".into()), "{kind}");
    }
    assert_eq!(send("").code(), "unsupported_media_type");
    for second in ["application/json", "text/plain"] {
        let reply = send(&format!("Content-Type: application/json\r\nContent-Type: {second}\r\n"));
        assert_eq!((reply.status, reply.code()), (415, "unsupported_media_type".into()), "{second}");
        assert!(reply.text().contains(&format!("application/json and {second}: send one")), "{}", reply.text());
    }
}

/// A body is undone of chunks, and of nothing else that stands round it.
#[test]
fn a_body_is_transferred_in_chunks_alone() {
    let server = serve(options());
    let (head, json) =
        ("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n", "{\"prompt\":\"to\"}");
    let send = |codings: &str| {
        server.connect().ask(&format!("{head}{codings}\r\n\r\n{:x}\r\n{json}\r\n0\r\n\r\n", json.len()))
    };
    for codings in ["gzip, chunked", "GZIP,chunked", "gzip\r\nTransfer-Encoding: chunked", "deflate, gzip, chunked"] {
        let reply = send(&format!("Transfer-Encoding: {codings}"));
        assert_eq!((reply.status, reply.code()), (501, "unsupported_transfer_encoding".into()), "{codings}");
        assert!(reply.text().to_lowercase().contains("gzip"), "{}", reply.text());
    }
    for codings in ["chunked", "Chunked"] {
        assert_eq!(send(&format!("Transfer-Encoding: {codings}")).status, 200, "{codings}");
    }
    server.lives();
}

/// Limits so large that their multiples are none.
#[test]
fn limits_may_be_as_large_as_numbers() {
    for huge in [usize::MAX, usize::MAX / 8 + 1, 1 << 61, 1 << 58] {
        let limits = ConnectionLimits { body_bytes: huge, connections: huge, header_bytes: huge, ..Default::default() };
        let server = serve(ServeOptions { limits, max_queue: huge, inspect: Some(huge), ..options() });
        server.lives();
        assert!(server.post("/inspect/v1/traces", &json!({ "prompt": "to be" })).text().contains("\"done\""));
    }
    let longest = Duration::MAX;
    let limits =
        ConnectionLimits { header_time: longest, body_time: longest, idle_time: longest, ..Default::default() };
    serve(ServeOptions { limits, look_time: longest, ..options() }).lives();
}

#[test]
fn a_query_is_refused_by_name() {
    let server = serve(options());
    for request in [
        get("/v1/models?limit=3", "Host: localhost\r\n"),
        common::post("/tokenize?limit=3", &json!({ "prompt": "to" })),
    ] {
        let reply = server.connect().ask(&request);
        assert_eq!((reply.status, reply.code()), (400, "unknown_parameter".into()));
        assert_eq!(reply.json()["error"]["param"], "?limit");
    }
    for path in ["/v1/models?", "/?a", "/health?a=b"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}

#[test]
fn a_broken_page_is_a_fault_of_the_server() {
    let folder = std::env::temp_dir().join(format!("limpid-serve-page-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in std::fs::read_dir("ui").unwrap().map(|file| file.unwrap().path()).filter(|file| file.is_file()) {
        std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
    let server = serve(ServeOptions { page: PageOptions::Folder(folder.clone()), ..options() });
    assert_eq!(server.get("/").status, 200);
    std::fs::remove_file(folder.join("app.js")).unwrap();
    let reply = server.get("/");
    assert_eq!((reply.status, reply.code()), (500, "engine_error".into()));
    assert!(!reply.text().contains(folder.to_str().unwrap()), "{}", reply.text());
    let events = server.events.lock().unwrap();
    assert!(
        matches!(&events[..], [ServeEvent::Failed { path: "/", what, .. }] if what.contains("app.js")),
        "{events:?}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_key_opens_what_is_not_open() {
    let keys = vec!["first-key".into(), "second".into()];
    let server = serve(ServeOptions { keys: keys.clone(), ..options() });
    let ask = |path: &str, key: &str| server.connect().ask(&get(path, &format!("Host: localhost\r\n{key}")));
    for key in [
        "",
        "Authorization: Bearer first-ke\r\n",
        "Authorization: Bearer first-keyx\r\n",
        "Authorization: first-key\r\n",
    ]
    .into_iter()
    .chain(["Authorization: Basic first-key\r\n", "Authorization: Bearer\r\n", "Authorization: Bearersecond\r\n"])
    {
        let reply = ask("/v1/models", key);
        let found = (reply.status, reply.code(), reply.header("www-authenticate"));
        assert_eq!(found, (401, "invalid_api_key".into(), Some("Bearer")), "{key}");
    }
    let missing = ask("/v1/models", "").text();
    assert_eq!(missing, ask("/v1/models", "Authorization: Bearer x\r\n").text(), "missing and wrong look the same");
    for key in
        ["Authorization: Bearer first-key\r\n", "authorization: bearer second\r\n", "Authorization: Bearer  second\r\n"]
    {
        assert_eq!(ask("/v1/models", key).status, 200, "{key}");
        assert_eq!(ask("/metrics", key).status, 200, "{key}");
    }
    for (path, status) in [("/health", 200), ("/ready", 200), ("/", 200), ("/metrics", 401), ("/tokenizer_info", 401)] {
        assert_eq!(ask(path, "").status, status, "{path}");
    }
    let open = serve(ServeOptions { keys, metrics_public: true, ..options() });
    let page = open.get("/metrics");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4"));
}

#[test]
fn a_request_keeps_its_name() {
    let server = serve(options());
    let name = |headers: &str| {
        let reply = server.connect().ask(&get("/health", &format!("Host: localhost\r\n{headers}")));
        reply.header("x-request-id").unwrap().to_string()
    };
    assert_eq!(name("X-Request-Id: a.B-9_\r\n"), "a.B-9_");
    let long = "x".repeat(65);
    for own in [
        "",
        "X-Request-Id: \r\n",
        "X-Request-Id: a b\r\n",
        "X-Request-Id: a\"\r\n",
        &format!("X-Request-Id: {long}\r\n"),
    ] {
        assert!(name(own).starts_with("req-"), "{own}");
    }
    assert_ne!(name(""), name(""));
}

/// A server whose clocks run fast.
fn hurried(limits: ConnectionLimits) -> Running {
    let short = Duration::from_millis(300);
    serve(ServeOptions {
        limits: ConnectionLimits { header_time: short, body_time: short, idle_time: short, ..limits },
        ..options()
    })
}

#[test]
fn a_body_has_its_limits() {
    let server =
        serve(ServeOptions { limits: ConnectionLimits { body_bytes: 1000, ..Default::default() }, ..options() });
    let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let body = |length: usize| format!("{{\"prompt\":\"{}\"}}", "t".repeat(length - 13));
    let sized = |length| format!("{head}Content-Length: {length}\r\n\r\n{}", body(length));
    let chunked = |length: usize| {
        let text = body(length);
        let chunks: Vec<&str> = vec![&text[..7], &text[7..]];
        let chunks: String = chunks.iter().map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len())).collect();
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
    };
    for request in [sized(1000), chunked(1000)] {
        assert_eq!(server.connect().ask(&request).status, 200);
    }
    for request in [sized(1001), chunked(1001), sized(7000), chunked(7000), chunked(9000)] {
        let mut client = server.connect();
        let reply = client.ask(&request);
        assert_eq!((reply.status, reply.code()), (413, "body_too_large".into()), "{request:.120}");
        assert!(reply.text().contains("1000") && reply.text().contains("--max-body"), "{}", reply.text());
        assert!(client.is_closed());
    }
    // what is announced is not waited for
    let reply = server.connect().ask(&format!("{head}Content-Length: 2000000000\r\n\r\n{{"));
    assert_eq!(reply.status, 413);
    let mut client = server.connect();
    client.send(format!("{head}Content-Length: 100\r\n\r\n{{"));
    client.stream.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    assert!(client.is_closed(), "half a body is nothing");
    server.lives();
}

#[test]
fn headers_have_their_limits() {
    let server = serve(options());
    let one = |length: usize| get("/health", &format!("Host: localhost\r\nX-Long: {}\r\n", "x".repeat(length)));
    assert_eq!(server.connect().ask(&one(15_000)).status, 200);
    let reply = server.connect().ask(&one(17_000));
    assert_eq!((reply.status, reply.code()), (431, "headers_too_large".into()));
    let reply = server.connect().ask(&get(&format!("/{}", "x".repeat(9000)), "Host: localhost\r\n"));
    assert_eq!((reply.status, reply.code()), (414, "uri_too_long".into()));
    // beyond what is read at all there is a status alone
    for request in [one(200_000), get("/health", &format!("Host: localhost\r\n{}", "X-A: b\r\n".repeat(500)))] {
        let mut client = server.connect();
        client.send(&request);
        if let Some((status, _)) = client.head() {
            assert_eq!(status, 431);
        }
        assert!(client.is_closed());
    }
    server.lives();
}

#[test]
fn who_is_too_slow_is_cut_off() {
    let server = hurried(ConnectionLimits::default());
    let mut silent = server.connect();
    let mut slow = server.connect();
    let mut body = server.connect();
    body.send(
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    );
    let reply = body.reply(false).unwrap();
    assert_eq!((reply.status, reply.code()), (408, "request_timeout".into()));
    assert!(body.is_closed());
    // a letter now and then is no request
    let mut lost = false;
    for letter in get("/health", "Host: localhost\r\n").bytes().cycle().take(2000) {
        lost = slow.stream.get_mut().write_all(&[letter]).is_err();
        if lost {
            break;
        }
        std::thread::sleep(Duration::from_millis(40));
        if letter == b'\n' {
            break;
        }
    }
    assert!(lost || slow.is_closed());
    assert!(silent.is_closed(), "a connection without a request");
    let mut used = server.connect();
    assert_eq!(used.ask(&get("/health", "Host: localhost\r\n")).status, 200);
    assert_eq!(used.ask(&get("/health", "Host: localhost\r\n")).status, 200);
    assert!(used.is_closed(), "a connection that waits for its next request");
    server.lives();
}

#[test]
#[ignore = "gate"]
fn connections_wait_for_a_place() {
    let server = hurried(ConnectionLimits { connections: 3, ..Default::default() });
    let held: Vec<TcpStream> = (0..30).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    let mut last = server.connect();
    last.send(get("/health", "Host: localhost\r\n"));
    assert_eq!(last.reply(false).unwrap().status, 200, "its turn comes when the others were cut off");
    drop(held);
    server.lives();
}

/// A connection that waits for its next request gives its place to another; one that is answered does not.
#[test]
fn idle_connections_lock_nobody_out() {
    let server = serve(ServeOptions { limits: ConnectionLimits { connections: 3, ..Default::default() }, ..options() });
    let mut busy = server.connect();
    let endless = json!({ "prompt": "to be", "max_tokens": 4000, "ignore_eos": true, "stream": true });
    busy.send(common::post("/v1/completions", &endless));
    busy.head().unwrap();
    let mut idle: Vec<Client> = (0..8)
        .map(|_| {
            let mut client = server.connect();
            assert_eq!(client.ask(&get("/health", "Host: localhost\r\n")).status, 200);
            client
        })
        .collect();
    assert!(idle[0].is_closed(), "the one that waited longest");
    assert_eq!(idle[7].ask(&get("/health", "Host: localhost\r\n")).status, 200);
    assert!(busy.chunk().is_some());
}

/// Connections that never send anything, and some that send half a request, keep nobody out, however long they could
/// wait.
#[test]
#[ignore = "gate"]
fn silent_connections_lock_nobody_out() {
    let forever = Duration::from_secs(86_400);
    let limits = ConnectionLimits { connections: 48, header_time: forever, idle_time: forever, ..Default::default() };
    let server = serve(ServeOptions { limits, ..options() });
    let mut waits = server.connect();
    assert_eq!(waits.ask(&get("/health", "Host: localhost\r\n")).status, 200);
    let silent: Vec<Client> = (0..200).map(|_| server.connect()).collect();
    let mut last = server.connect();
    assert_eq!(last.ask(&get("/health", "Host: localhost\r\n")).status, 200);
    assert_eq!(
        waits.ask(&get("/health", "Host: localhost\r\n")).status,
        200,
        "those that never sent anything go first"
    );
    drop(silent);
    let halves: Vec<Client> = (0..200)
        .map(|_| {
            let mut half = server.connect();
            half.send("GET /hea");
            half
        })
        .collect();
    let mut last = server.connect();
    assert_eq!(last.ask(&get("/health", "Host: localhost\r\n")).status, 200);
    drop(halves);
    server.lives();
}

#[test]
fn requests_in_a_row_are_answered_in_order() {
    let server = serve(options());
    let mut client = server.connect();
    let requests = [
        get("/health", "Host: localhost\r\n"),
        common::post("/tokenize", &json!({ "prompt": "to" })),
        get("/nowhere", "Host: localhost\r\n"),
        common::post("/v1/completions", &json!({ "prompt": "to", "max_tokens": 3 })),
        get("/v1/models", "Host: localhost\r\n"),
    ];
    client.send(requests.concat());
    let found: Vec<u16> = (0..5).map(|_| client.reply(false).unwrap().status).collect();
    assert_eq!(found, [200, 200, 404, 200, 200]);
}

/// Requests that two servers might read differently, or that are none: none is answered as if it were right, and
/// nothing that is hidden behind it is taken for a request.
#[test]
fn what_is_no_request_is_not_answered() {
    let server = serve(options());
    let hidden = get("/v1/models", "Host: localhost\r\nX-Request-Id: hidden\r\n");
    let post = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let json = "{\"prompt\":\"to\"}"; // 15 bytes
    let cases: Vec<(&str, String)> = vec![
        ("no HTTP", "hello\r\n\r\n".into()),
        ("TLS", "\u{16}\u{3}\u{1}\u{2}\0".into()),
        ("a method of control characters", format!("G\u{1}T / HTTP/1.1\r\nHost: localhost\r\n\r\n{hidden}")),
        ("a version that is not there", format!("GET / HTTP/9.9\r\nHost: localhost\r\n\r\n{hidden}")),
        ("a space before a colon", format!("GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n{hidden}")),
        ("a folded header", format!("GET /health HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n{hidden}")),
        ("a zero byte", format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n{hidden}")),
        ("two lengths", format!("{post}Content-Length: 15\r\nContent-Length: 16\r\n\r\n{json}{hidden}")),
        ("a list of lengths", format!("{post}Content-Length: 15, 16\r\n\r\n{json}{hidden}")),
        ("a length below zero", format!("{post}Content-Length: -1\r\n\r\n{json}{hidden}")),
        ("a length with a sign", format!("{post}Content-Length: +15\r\n\r\n{json}{hidden}")),
        ("a length that is none", format!("{post}Content-Length: 0x0f\r\n\r\n{json}{hidden}")),
        ("a length beyond numbers", format!("{post}Content-Length: 99999999999999999999\r\n\r\n{json}{hidden}")),
        ("an unknown encoding", format!("{post}Transfer-Encoding: gzip\r\n\r\n{json}{hidden}")),
        ("chunked, and more", format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}")),
        (
            "chunks in HTTP/1.0",
            format!("{}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}", post.replace("1.1", "1.0")),
        ),
        (
            "a chunk that is no number",
            format!("{post}Transfer-Encoding: chunked\r\n\r\nxyz\r\n{json}\r\n0\r\n\r\n{hidden}"),
        ),
        (
            "a chunk beyond numbers",
            format!("{post}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{json}{hidden}"),
        ),
        (
            "a chunk that is longer than it says",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n3\r\n{json}\r\n0\r\n\r\n{hidden}"),
        ),
    ];
    for (what, request) in cases {
        let mut client = server.connect();
        client.send(&request);
        if let Some(reply) = client.reply(false) {
            assert_eq!(reply.status, 400, "{what}");
        }
        let mut rest = vec![];
        let _ = std::io::Read::read_to_end(&mut client.stream, &mut rest);
        assert!(!String::from_utf8_lossy(&rest).contains("hidden"), "{what}: {}", String::from_utf8_lossy(&rest));
        server.lives();
    }
    // both a length and chunks: the chunks count, and the connection ends, so nothing can hide behind either
    for both in ["Content-Length: 4\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 4"] {
        let mut client = server.connect();
        client.send(format!("{post}{both}\r\n\r\nf\r\n{json}\r\n0\r\n\r\n{hidden}"));
        assert_eq!(client.reply(false).map(|reply| reply.status), Some(200));
        assert!(client.reply(false).is_none(), "{both}");
    }
    server.lives();
}

#[test]
fn a_flood_of_connections_passes() {
    let server = hurried(ConnectionLimits { connections: 64, ..Default::default() });
    let mut all = vec![];
    for n in 0..400 {
        let Ok(mut stream) = TcpStream::connect(server.address) else { continue };
        match n % 4 {
            0 => {}
            1 => drop(stream.write_all(b"GET /hea")),
            2 => drop(stream.write_all(&[255; 300])),
            _ => drop(stream.write_all(get("/health", "Host: localhost\r\n").as_bytes())),
        }
        all.push(stream);
    }
    let answered =
        all.split_off(0).into_iter().skip(3).step_by(4).map(|stream| Client { stream: BufReader::new(stream) });
    for mut client in answered {
        assert_eq!(client.reply(false).map(|reply| reply.status), Some(200));
    }
    server.lives();
}
