//! What a request is charged: estimated from its bytes, corrected by the engines' own counts.

use crate::harness::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An engine that never answers what says "hold", and counts a token for every `per_token` bytes of
/// the messages in the rest.
async fn counting(per_token: usize) -> Engine {
    Engine::start(move |seen| async move {
        if seen.text().contains("hold") {
            return std::future::pending().await;
        }
        let text = seen.text();
        let messages = &text[text.find('[').unwrap() + 1..text.rfind(']').unwrap()];
        json(format!(
            r#"{{"choices":[],"usage":{{"prompt_tokens":{},"completion_tokens":3}}}}"#,
            messages.len() / per_token
        ))
    })
    .await
}

fn message(bytes: usize, word: &str) -> String {
    format!("\"{word:.<width$}\"", width = bytes - 2)
}

fn chat(model: &str, messages: &[String]) -> String {
    let messages = messages.join(",");
    format!(r#"{{"model":"{model}","messages":[{messages}]}}"#)
}

/// What is outstanding while the engine has the request and is silent.
async fn charged(rig: &Running, session: &str, body: String) -> u64 {
    let (mut client, session) = (rig.client().await, session.to_owned());
    let waiting = tokio::spawn(async move {
        let request = post("/", &[("x-session-id", &session)], body);
        client.begin(request).await;
    });
    until("it is sent", || rig.load(0).requests == 1).await;
    let metrics = rig.metrics().await;
    let line = "pointsman_target_prefill_tokens{target=\"a/0\"} ";
    let value = (metrics.lines().find_map(|l| l.strip_prefix(line))).unwrap();
    waiting.abort();
    rig.drained().await;
    value.parse().unwrap()
}

#[tokio::test]
async fn case_32_a_compacted_turn_is_charged_for_what_is_new_although_it_is_shorter() {
    let engine = counting(4).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let [system, question, answer] =
        [(400, "system"), (4000, "question"), (8000, "answer")].map(|(n, word)| message(n, word));
    let headers = [("x-session-id", "s")];
    let first = chat("m", &[system.clone(), question, answer]);
    assert_eq!(rig.send(post("/", &headers, first)).await.status, 200);
    let compacted = chat("m", &[system, message(2000, "hold, a summary")]);
    assert_eq!(charged(&rig, "s", compacted.clone()).await, 500);
    assert_eq!(
        charged(&rig, "another", compacted).await,
        600,
        "who has sent nothing before is charged for all of it"
    );
}

#[tokio::test]
async fn case_32_an_appended_turn_is_charged_for_its_new_messages() {
    let engine = counting(4).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let mut messages = vec![message(400, "system"), message(4000, "question")];
    let first = chat("m", &messages);
    rig.send(post("/", &[("x-session-id", "s")], first)).await;
    messages.extend([message(800, "answer"), message(200, "hold, a question")]);
    assert_eq!(charged(&rig, "s", chat("m", &messages)).await, 250);
}

#[tokio::test]
async fn bytes_per_token_are_learnt_for_each_model_from_what_its_engine_counts() {
    let engine = counting(2).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let held = |model| chat(model, &[message(4000, "hold")]);
    assert_eq!(charged(&rig, "s", held("m")).await, 1000);
    let question = message(4000, "question");
    let body = chat("m", std::slice::from_ref(&question));
    rig.send(post("/", &[("x-session-id", "t")], body.clone()))
        .await;
    for _ in 0..100 {
        rig.send(post("/", &[], body.clone())).await;
    }
    assert_eq!(charged(&rig, "s", held("m")).await, 2000);
    assert_eq!(charged(&rig, "s", held("other")).await, 1000);
    // What it sent before was remembered in other tokens: the shared part is taken in today's.
    let both = chat("m", &[question, message(400, "hold")]);
    assert_eq!(charged(&rig, "t", both).await, 200);
}

#[tokio::test]
async fn a_stream_teaches_as_well_wherever_it_is_cut() {
    let (engine, mut streams) = streaming().await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let body = chat("m", &[message(4000, "question")]);
    for _ in 0..100 {
        let mut client = rig.client().await;
        let response = client.begin(post("/", &[], body.clone())).await;
        let stream = streams.recv().await.unwrap();
        for chunk in [
            "data: {\"choices\":[{}],\"usage\":null}\n\ndata: {\"usa",
            "ge\":{\"prompt_tokens\":20",
            "00}}\n\ndata: [DONE]\n\n",
        ] {
            stream.send(Ok(chunk)).unwrap();
        }
        drop(stream);
        http_body_util::BodyExt::collect(response.into_body())
            .await
            .unwrap();
    }
    assert_eq!(charged_head(&rig, &mut streams, body).await, 2000);
}

/// As [`charged`], of an engine that answers with a head and then nothing.
async fn charged_head(
    rig: &Running,
    streams: &mut tokio::sync::mpsc::UnboundedReceiver<Sender>,
    body: String,
) -> u64 {
    let mut client = rig.client().await;
    let _response = client.begin(post("/", &[], body)).await;
    let _stream = streams.recv().await.unwrap();
    rig.load(0).prefill_tokens
}

#[tokio::test]
async fn case_16_and_17_an_engine_that_counts_nothing_is_itself_counted() {
    let engine = Engine::start(|seen| async move {
        match seen.uri.path() {
            "/silent" => json(r#"{"choices":[]}"#),
            "/absurd" => json(r#"{"usage":{"prompt_tokens":0,"completion_tokens":0}}"#),
            "/audio" => text("RIFF"),
            "/counts" => json(r#"{"usage":{"prompt_tokens":30}}"#),
            "/refuses" => {
                let mut answer = json("{}");
                *answer.status_mut() = http::StatusCode::BAD_REQUEST;
                answer
            }
            _ => {
                let (sender, answer) = chunks();
                sender.send(Ok("data: {}\n\ndata: [DONE]\n\n")).unwrap();
                answer
            }
        }
    })
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    for (path, missing) in [
        ("/counts", 0),
        ("/silent", 1),
        ("/stream", 2),
        ("/absurd", 3),
        ("/audio", 3),
        ("/refuses", 3),
        ("/counts", 3),
    ] {
        let prompt = chat("m", &[message(100, "question")]);
        rig.send(post(path, &[], prompt)).await;
        rig.send(post(path, &[], "{}")).await; // no prompt, nothing to count
        let line = format!("pointsman_usage_missing_total {missing}\n");
        let metrics = rig.metrics().await;
        assert!(metrics.contains(&line), "after {path}: {line} in {metrics}");
    }
}

#[tokio::test]
async fn a_gigabyte_that_streams_is_charged_as_the_longest_prompt_at_most() {
    let engine = Engine::connections(|mut stream, _| async move {
        while let Ok(1..) = stream.read(&mut [0; 4096]).await {}
    })
    .await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.limits.body_bytes = u64::MAX)
        .start();
    for length in ["1073741824", "9223372036854775807"] {
        let mut stream = TcpStream::connect(rig.address).await.unwrap();
        let head = format!(
            "POST /x HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        until("it is charged", || rig.load(0).requests == 1).await;
        let load = rig.load(0);
        assert_eq!(load.prefill_tokens, 2 << 20);
        assert_eq!(load.context_tokens, 2 << 20);
        drop(stream);
        rig.drained().await;
    }
}

#[tokio::test]
async fn absurd_bodies_reach_the_engine_as_they_are() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let deep = format!("{}1{}", "[".repeat(500_000), "]".repeat(500_000));
    for body in [
        format!(r#"{{"messages":{deep},"nvext":{deep}}}"#).into_bytes(),
        format!(
            r#"{{"messages":[{}1],"max_tokens":1e99}}"#,
            "1,".repeat(1_000_000)
        )
        .into_bytes(),
        format!(r#"{{{}"model":-1}}"#, r#""model":"m","#.repeat(100_000)).into_bytes(),
        format!(r#"{{"max_tokens":{}}}"#, "9".repeat(100_000)).into_bytes(),
        b"{\"messages\":[\"\xff\xfe\"]}".to_vec(),
        b"{\"messages\":[\"\0\"],\"model\":\"\0\"}".to_vec(),
        br#"{"model":"\ud800","messages":["\u0000"]}"#.to_vec(),
        vec![0; 100_000],
    ] {
        let got = rig
            .send(post("/", &[("x-session-id", "s")], body.clone()))
            .await;
        assert_eq!(got.status, 200);
        assert!(engine.last().body == body, "{:?}", body.get(..20));
    }
    rig.drained().await;
}
